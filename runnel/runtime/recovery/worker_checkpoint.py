"""A worker's part of a checkpoint, as named arrays; and all parts joined into one, the same for every distribution.

| name | what |
|---|---|
| `iteration`, `updates.GROUP`, `states.GROUP.i`, `replays.NODE.i`, `window.*` | what learning needs |
| `block.N.*` | what playing block N needs: counters, memories, and its episodes or its environments' state |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from runnel.ops.episodes import Running, Window
from runnel.planning.channels import EnvBlock, Topology
from runnel.runtime.programs.acting import LocalPolicies
from runnel.runtime.programs.carry import ActorStates, Carry, EnvStates, ReplayState
from runnel.runtime.programs.schedule import Credit
from runnel.runtime.programs.stage import Component
from runnel.runtime.recovery.block_checkpoint import entry, load_counter, load_host, save_counter, save_host
from runnel.runtime.recovery.journal import Arrays
from runnel.types import PyTree

if TYPE_CHECKING:
    from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceClient, InferenceServer
    from runnel.runtime.workers.player import BlockState


def flat(prefix: str, tree: PyTree) -> Arrays:
    """A tree's leaves by number."""
    return {f"{prefix}.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.device_get(jax.tree.leaves(tree)))}


def filled(prefix: str, like: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """The tree that `flat` flattened; `like` where there is none."""
    leaves, structure = jax.tree.flatten(like)
    if leaves and f"{prefix}.0" not in arrays:
        return like
    return jax.tree.unflatten(structure, [arrays[f"{prefix}.{i}"] for i in range(len(leaves))])


# Learning


def save_learning(carry: Carry, foreign: Iterable[str]) -> Arrays:
    """`foreign` groups are learnt elsewhere."""
    saved: Arrays = {"iteration": np.asarray(carry.iteration), "seed": np.asarray(jax.device_get(carry.seed))}
    for group, state in carry.states.items():
        if group not in foreign and hasattr(state, "params"):
            saved |= flat(f"states.{group}", state)
            saved[f"updates.{group}"] = np.asarray(carry.updates[group])
    for node, buffer in carry.replays.items():
        saved |= flat(f"replays.{node}", buffer)
    if isinstance(carry.window, Window):
        saved |= _window(carry.window)
    return saved


def _window(window: Window) -> Arrays:
    window = jax.device_get(window)
    returns = {f"window.returns.{group}": np.asarray(ring) for group, ring in window.returns.items()}
    return returns | {f"window.{name}": np.asarray(getattr(window, name)) for name in ("lengths", "cursor", "filled")}


def load_learning(carry: Carry, saved: Arrays) -> Carry:
    if not saved:
        return carry
    window = carry.window
    if isinstance(window, Window):
        rest = {name: saved[f"window.{name}"] for name in ("lengths", "cursor", "filled")}
        window = Window({group: saved[f"window.returns.{group}"] for group in window.returns}, **rest)
    loaded = carry._replace(
        seed=saved["seed"],  # another than the run's, where it went back and on with other random numbers
        iteration=saved["iteration"],
        updates={group: saved[f"updates.{group}"] for group in carry.updates},
        states={group: filled(f"states.{group}", state, saved) for group, state in carry.states.items()},
        replays={node: filled(f"replays.{node}", buffer, saved) for node, buffer in carry.replays.items()},
        window=window,
    )
    return jax.device_put(loaded)


def load_credit(credit: Credit, component: Component, saved: Arrays) -> None:
    if saved:
        names = [node.name for node in component.replays]
        credit.restore(
            {name: int(saved[f"inserted.{name}"]) for name in names},
            {name: float(saved[f"credit.{name}"]) for name in names},
        )


# Playing


def save_block(block: BlockState, place: EnvBlock) -> Arrays:
    """A block of host environments, or of JAX environments stepped from the host."""
    prefix = f"block.{place.number}"
    state = getattr(block.vector, "state", None)
    saved = save_host(place.number, block) if state is None else save_counter(place.number, block.counter)
    if isinstance(block.acting, LocalPolicies):
        for group, memory in block.acting.memories.items():
            saved |= flat(f"{prefix}.memory.{group}", memory)
    if state is not None:
        saved |= _stepped_state(prefix, block, state)
    return saved


def block_entry(block: BlockState) -> Arrays:
    """What a journal keeps of a block between two unrolls, named as in a checkpoint's block 0."""
    kept = entry(block)
    state = getattr(block.vector, "state", None)
    if isinstance(block.acting, LocalPolicies):
        for group, memory in block.acting.memories.items():
            kept |= flat(f"block.0.memory.{group}", memory)
    if state is not None:
        kept |= _stepped_state("block.0", block, state)
    return kept


def _stepped_state(prefix: str, block: BlockState, state: Any) -> Arrays:
    """Of JAX environments stepped from the host."""
    kept = flat(f"{prefix}.environment", state.environment)
    for group, rows in _rows(block, state.observation).items():
        kept |= flat(f"{prefix}.observation.{group}", rows)
    return kept | {f"{prefix}.first": block.first[-1].copy()}


def load_block(block: BlockState, place: EnvBlock, saved: Arrays) -> None:
    """Stands where it was saved, or at the beginning."""
    if not saved:
        block.reset()
        return
    prefix = f"block.{place.number}"
    if isinstance(block.acting, LocalPolicies):
        memories = {g: filled(f"{prefix}.memory.{g}", m, saved) for g, m in block.acting.memories.items()}
        block.acting.memories = jax.device_put(memories)
    if f"{prefix}.first" not in saved:
        load_host(place.number, block, saved)
        return
    load_counter(place.number, block.counter, saved)
    unrolls = int(saved["iteration"])
    block.stand(unrolls, saved[f"{prefix}.first"], lambda opening: _stand(block, prefix, saved, unrolls, opening))


def _stand(block: BlockState, prefix: str, saved: Arrays, unrolls: int, opening: dict[str, PyTree]) -> None:
    vector: Any = block.vector
    vector.reset(opening)
    state = vector.state
    like = _rows(block, state.observation)
    rows = {group: filled(f"{prefix}.observation.{group}", tree, saved) for group, tree in like.items()}
    shown = jax.tree.map(lambda new, old: new.reshape(old.shape), rows, _groups(block, state.observation))
    vector.state = state._replace(
        environment=jax.device_put(filled(f"{prefix}.environment", state.environment, saved)),
        observation=shown if len(block.lanes) > 1 else next(iter(shown.values())),
        step=unrolls * block.steps,
    )
    vector.show(opening)


def _groups(block: BlockState, observation: PyTree) -> dict[str, PyTree]:
    """An environment's observation by group: with one group it is plain."""
    return observation if len(block.lanes) > 1 else dict.fromkeys(block.lanes, observation)


def _rows(block: BlockState, observation: PyTree) -> dict[str, PyTree]:
    """By group: [B, ...] from [E, (agents,) ...]."""

    def flatten(tree: PyTree, agents: int) -> PyTree:
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]) if agents > 1 else x, tree)

    groups = _groups(block, observation)
    return {group: flatten(tree, block.lanes[group].types.agents.agents) for group, tree in groups.items()}


def load_client(client: InferenceClient, saved: Arrays) -> None:
    if saved:
        client.unrolls = int(saved["iteration"])
        if client.kept is not None:
            load_counter(client.block.number, client.counter, saved)


def save_server(server: InferenceServer | AsyncInferenceServer) -> Arrays:
    saved: Arrays = {}
    for client in server.clients:
        saved |= save_counter(client.block.number, client.counter)
    for client, memory in server.memories():
        saved |= flat(f"block.{client.block.number}.memory.{client.group}", memory)
    return saved


def load_server(server: InferenceServer | AsyncInferenceServer, saved: Arrays) -> None:
    if saved:
        server.restore(
            [
                filled(f"block.{client.block.number}.memory.{client.group}", memory, saved)
                for client, memory in server.memories()
            ]
        )


# All parts together


def join(arrays: Arrays, like: Carry, topology: Topology, host: bool) -> dict[str, PyTree]:
    """All parts as what a program of one process saves. `like` has the types of the whole carry."""
    assert isinstance(like.actors, ActorStates)
    assert isinstance(like.running, Running)
    numbers = [block.number for block in topology.blocks]

    def column(name: str, default: Any) -> np.ndarray:
        found = [arrays[f"block.{n}.{name}"] for n in numbers if f"block.{n}.{name}" in arrays]
        return np.concatenate(found) if found else np.zeros(default.shape, default.dtype)

    def tree(name: str, tree: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(tree)
        return jax.tree.unflatten(structure, [column(f"{name}.{i}", leaf) for i, leaf in enumerate(leaves)])

    groups = list(like.updates)
    environments: Any = ()
    if isinstance(like.environments, EnvStates):
        shown = like.environments.observation
        environments = EnvStates(
            tree("environment", like.environments.state),
            {group: tree(f"observation.{group}", shown[group]) for group in shown},
            column("first", like.environments.first),
        )
    window = like.window
    assert isinstance(window, Window)
    rest = {
        name: arrays.get(f"window.{name}", np.zeros_like(getattr(window, name)))
        for name in ("lengths", "cursor", "filled")
    }
    carry = Carry(
        seed=arrays["seed"],
        iteration=arrays["iteration"],
        updates={group: arrays[f"updates.{group}"] for group in groups},
        states={group: filled(f"states.{group}", like.states[group], arrays) for group in groups},
        replays={node: _buffer(node, buffer, arrays) for node, buffer in like.replays.items()},
        window=Window({g: arrays[f"window.returns.{g}"] for g in groups}, **rest),
        actors=ActorStates(
            {g: tree(f"memory.{g}", like.actors.memory[g]) for g in groups},
            {g: column(f"discounted.{g}", s).astype(s.dtype) for g, s in like.actors.discounted_sum.items()},
        ),
        running=Running(
            {g: column(f"reward.{g}", r) for g, r in like.running.reward.items()},
            column("length", like.running.length),
        ),
        environments=environments,
    )
    packed: dict[str, PyTree] = {}
    if host:
        names = sorted({name.split(".host.")[1] for name in arrays if ".host." in name})
        packed = {name: column(f"host.{name}", np.zeros(0)) for name in names}
    return {"carry": carry, "host": packed}


def _buffer(node: str, like: ReplayState, arrays: Arrays) -> ReplayState:
    return filled(f"replays.{node}", like, arrays)


def split(saved: dict[str, PyTree], topology: Topology, agents: dict[str, int]) -> Arrays:
    """What `join` joined, as all the arrays that workers are made from."""
    carry: Carry = jax.device_get(saved["carry"])
    assert isinstance(carry.actors, ActorStates)
    assert isinstance(carry.running, Running)
    arrays = save_learning(carry, ())
    for node, buffer in carry.replays.items():
        arrays |= {f"inserted.{node}": np.asarray(buffer.inserted), f"credit.{node}": np.asarray(buffer.credit)}
    packed = {name: np.asarray(value) for name, value in saved["host"].items()}
    cut = packed.pop("cut", np.zeros(topology.blocks[-1].stop, np.bool_))
    ends = np.cumsum(packed["lengths"]) if packed else np.zeros(0, np.int64)
    for block in topology.blocks:
        prefix, envs = f"block.{block.number}", slice(block.start, block.stop)
        kept = ~cut[envs]
        arrays[f"{prefix}.length"] = carry.running.length[envs] * kept
        for group, count in agents.items():
            columns = slice(block.start * count, block.stop * count)
            arrays[f"{prefix}.reward.{group}"] = carry.running.reward[group][envs] * kept
            total = carry.actors.discounted_sum[group][columns]
            arrays[f"{prefix}.discounted.{group}"] = total * kept.repeat(count)
            memory = jax.tree.map(lambda x, columns=columns: x[columns], carry.actors.memory[group])
            arrays |= flat(f"{prefix}.memory.{group}", memory)
        if isinstance(carry.environments, EnvStates):
            state = jax.tree.map(lambda x, envs=envs: x[envs], carry.environments.state)
            arrays |= flat(f"{prefix}.environment", state)
            arrays[f"{prefix}.first"] = carry.environments.first[envs]
            for group, count in agents.items():
                columns = slice(block.start * count, block.stop * count)
                seen = jax.tree.map(lambda x, columns=columns: x[columns], carry.environments.observation[group])
                arrays |= flat(f"{prefix}.observation.{group}", seen)
        if packed:
            first = int(ends[block.start] - packed["lengths"][block.start])
            span = slice(first, int(ends[block.stop - 1]))
            for name, array in packed.items():
                arrays[f"{prefix}.host.{name}"] = array[span] if name.startswith("actions/") else array[envs]
            arrays[f"{prefix}.host.cut"] = np.zeros(len(block.envs), np.bool_)  # taken care of here
    return arrays
