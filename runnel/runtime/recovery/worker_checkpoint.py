"""A worker's part of a checkpoint, as arrays named by `checkpoint_names.py`; joins and splits parts.

Joined, the parts equal the checkpoint of a program in one process: a checkpoint is the same under every distribution.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from runnel.ops.episodes import Running, Window
from runnel.planning.channels import EnvBlock, Topology
from runnel.runtime.programs import replay_shards
from runnel.runtime.programs.acting import LocalPolicies
from runnel.runtime.programs.carry import ActorStates, Carry, EnvStates, ReplayState
from runnel.runtime.programs.schedule import Credit
from runnel.runtime.programs.stage import Component
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.block_checkpoint import entry, load_counter, load_host, save_counter, save_host
from runnel.runtime.recovery.journal import Arrays
from runnel.types import PyTree

if TYPE_CHECKING:
    from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceClient, InferenceServer
    from runnel.runtime.workers.player import BlockState


def leaf_arrays(prefix: str, tree: PyTree) -> Arrays:
    """A tree's leaves, named by `prefix` and their number."""
    return {names.leaf(prefix, i): np.asarray(leaf) for i, leaf in enumerate(jax.device_get(jax.tree.leaves(tree)))}


def tree_of(prefix: str, like: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """The tree whose `leaf_arrays` these are; `like` itself if it was not saved."""
    leaves, structure = jax.tree.flatten(like)
    if leaves and names.leaf(prefix, 0) not in arrays:
        return like
    return jax.tree.unflatten(structure, [arrays[names.leaf(prefix, i)] for i in range(len(leaves))])


# Learning


def save_learning(carry: Carry, remote: Iterable[str]) -> Arrays:
    """A learner's part; other workers learn the groups in `remote`."""
    saved: Arrays = {names.ITERATION: np.asarray(carry.iteration), names.SEED: np.asarray(jax.device_get(carry.seed))}
    for group, state in carry.states.items():
        if group not in remote and hasattr(state, "params"):
            saved |= leaf_arrays(names.state(group), state)
            saved[names.updates(group)] = np.asarray(carry.updates[group])
    for node, buffer in carry.replays.items():
        saved |= _save_replay(node, buffer)
    if isinstance(carry.window, Window):
        saved |= _window(carry.window)
    return saved


def _save_replay(node: str, buffer: ReplayState) -> Arrays:
    """The leaves that all learners share, and this process's parts of the others."""
    saved: Arrays = {}
    for i, leaf in enumerate(jax.tree.leaves(buffer)):
        name = names.leaf(names.replay(node), i)
        if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
            saved |= {names.part(name, start): part for start, part in replay_shards.parts(leaf)}
        else:
            saved[name] = np.asarray(leaf)
    return saved


def load_replays(like: Mapping[str, ReplayState], saved: Arrays) -> dict[str, ReplayState]:
    """The saved replays, on the host, or `like` for those that were not saved."""
    return {node: tree_of(names.replay(node), replay, saved) for node, replay in like.items()}


def _window(window: Window) -> Arrays:
    window = jax.device_get(window)
    returns = {names.window_returns(group): np.asarray(ring) for group, ring in window.returns.items()}
    return returns | {names.window(field): np.asarray(getattr(window, field)) for field in names.WINDOW_FIELDS}


def load_learning(carry: Carry, saved: Arrays) -> Carry:
    """Restores a learner's part of the carry; its replays are loaded separately (`load_replays`)."""
    if not saved:
        return carry
    window = carry.window
    if isinstance(window, Window):
        rest = {field: saved[names.window(field)] for field in names.WINDOW_FIELDS}
        window = Window({group: saved[names.window_returns(group)] for group in window.returns}, **rest)
    loaded = carry._replace(
        seed=saved[names.SEED],  # differs from the run's after a rollback with other random numbers
        iteration=saved[names.ITERATION],
        updates={group: saved[names.updates(group)] for group in carry.updates},
        states={group: tree_of(names.state(group), state, saved) for group, state in carry.states.items()},
        window=window,
    )
    return jax.device_put(loaded)


def load_credit(credit: Credit, component: Component, saved: Arrays) -> None:
    if saved:
        nodes = [node.name for node in component.replays]
        credit.restore(
            {node: int(saved[names.inserted(node)]) for node in nodes},
            {node: float(saved[names.credit(node)]) for node in nodes},
        )


# Blocks of environments


def save_block(block: BlockState, place: EnvBlock) -> Arrays:
    """A block of host environments, or of JAX environments stepped from the host."""
    number = place.number
    state = getattr(block.vector, "state", None)
    saved = save_host(number, block) if state is None else save_counter(number, block.counter)
    if isinstance(block.acting, LocalPolicies):
        for group, memory in block.acting.memories.items():
            saved |= leaf_arrays(names.block(number, names.memory(group)), memory)
    if state is not None:
        saved |= {names.block(number, field): array for field, array in _stepped_state(block, state).items()}
    return saved


def block_entry(block: BlockState) -> Arrays:
    """A journal's entry for a block of any kind of environment."""
    kept = entry(block)
    state = getattr(block.vector, "state", None)
    if isinstance(block.acting, LocalPolicies):
        for group, memory in block.acting.memories.items():
            kept |= leaf_arrays(names.journal_field(names.memory(group)), memory)
    if state is not None:
        kept |= {names.journal_field(field): array for field, array in _stepped_state(block, state).items()}
    return kept


def _stepped_state(block: BlockState, state: Any) -> Arrays:
    """Fields of a block of JAX environments stepped from the host."""
    kept = leaf_arrays(names.ENVIRONMENT, state.environment)
    for group, rows in _rows(block, state.observation).items():
        kept |= leaf_arrays(names.observation(group), rows)
    return kept | {names.FIRST: block.first[-1].copy()}


def load_block(block: BlockState, place: EnvBlock, saved: Arrays) -> None:
    """Continues from the saved state; from the beginning if nothing was saved."""
    if not saved:
        block.reset()
        return
    number = place.number
    if isinstance(block.acting, LocalPolicies):
        memories = {
            group: tree_of(names.block(number, names.memory(group)), memory, saved)
            for group, memory in block.acting.memories.items()
        }
        block.acting.memories = jax.device_put(memories)
    if names.block(number, names.FIRST) not in saved:
        load_host(number, block, saved)
        return
    load_counter(number, block.counter, saved)
    unrolls = int(saved[names.ITERATION])
    first = saved[names.block(number, names.FIRST)]
    block.stand(unrolls, first, lambda opening: _restore_stepped(block, number, saved, unrolls, opening))


def _restore_stepped(block: BlockState, number: int, saved: Arrays, unrolls: int, opening: dict[str, PyTree]) -> None:
    vector: Any = block.vector
    vector.reset(opening)
    state = vector.state
    like = _rows(block, state.observation)
    rows = {group: tree_of(names.block(number, names.observation(group)), tree, saved) for group, tree in like.items()}
    shown = jax.tree.map(lambda new, old: new.reshape(old.shape), rows, _groups(block, state.observation))
    vector.state = state._replace(
        environment=jax.device_put(tree_of(names.block(number, names.ENVIRONMENT), state.environment, saved)),
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
        client.unrolls = int(saved[names.ITERATION])
        if client.kept is not None:
            load_counter(client.block.number, client.counter, saved)


def save_server(server: InferenceServer | AsyncInferenceServer) -> Arrays:
    saved: Arrays = {}
    for client in server.clients:
        saved |= save_counter(client.block.number, client.counter)
    for client, memory in server.memories():
        saved |= leaf_arrays(names.block(client.block.number, names.memory(client.group)), memory)
    return saved


def load_server(server: InferenceServer | AsyncInferenceServer, saved: Arrays) -> None:
    if saved:
        server.restore(
            [
                tree_of(names.block(client.block.number, names.memory(client.group)), memory, saved)
                for client, memory in server.memories()
            ]
        )


# All parts


def join(arrays: Arrays, like: Carry, topology: Topology, host: bool) -> dict[str, PyTree]:
    """Joins the parts of all workers into the checkpoint of a program in one process. `like`: the types of the whole
    carry."""
    assert isinstance(like.actors, ActorStates)
    assert isinstance(like.running, Running)
    arrays = _with_whole_replays(arrays, like.replays)
    numbers = [block.number for block in topology.blocks]

    def column(field: str, default: Any) -> np.ndarray:
        found = [arrays[name] for number in numbers if (name := names.block(number, field)) in arrays]
        return np.concatenate(found) if found else np.zeros(default.shape, default.dtype)

    def tree(field: str, like: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, [column(names.leaf(field, i), leaf) for i, leaf in enumerate(leaves)])

    groups = list(like.updates)
    environments: Any = ()
    if isinstance(like.environments, EnvStates):
        shown = like.environments.observation
        environments = EnvStates(
            tree(names.ENVIRONMENT, like.environments.state),
            {group: tree(names.observation(group), shown[group]) for group in shown},
            column(names.FIRST, like.environments.first),
        )
    window = like.window
    assert isinstance(window, Window)
    rest = {
        field: arrays.get(names.window(field), np.zeros_like(getattr(window, field))) for field in names.WINDOW_FIELDS
    }
    carry = Carry(
        seed=arrays[names.SEED],
        iteration=arrays[names.ITERATION],
        updates={group: arrays[names.updates(group)] for group in groups},
        states={group: tree_of(names.state(group), like.states[group], arrays) for group in groups},
        replays={node: tree_of(names.replay(node), buffer, arrays) for node, buffer in like.replays.items()},
        window=Window({g: arrays[names.window_returns(g)] for g in window.returns}, **rest),
        actors=ActorStates(
            {g: tree(names.memory(g), like.actors.memory[g]) for g in groups},
            {g: column(names.discounted(g), s).astype(s.dtype) for g, s in like.actors.discounted_sum.items()},
        ),
        running=Running(
            {g: column(names.reward(g), r) for g, r in like.running.reward.items()},
            column(names.LENGTH, like.running.length),
        ),
        environments=environments,
    )
    packed: dict[str, PyTree] = {}
    if host:
        found = sorted({own for name in arrays if (own := names.host_name(name)) is not None})
        packed = {name: column(names.host(name), np.zeros(0)) for name in found}
    return {"carry": carry, "host": packed}


def _with_whole_replays(arrays: Arrays, replays: Mapping[str, ReplayState]) -> Arrays:
    """The arrays, with the parts of replays' leaves joined."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in arrays.items():
        if (found := names.part_of(name)) is not None:
            parts.setdefault(found[0], {})[found[1]] = array
    whole = {
        name: replay_shards.together(parts[name], leaf.shape)
        for node, replay in replays.items()
        for i, leaf in enumerate(jax.tree.leaves(replay))
        if (name := names.leaf(names.replay(node), i)) in parts
    }
    return {name: array for name, array in arrays.items() if names.part_of(name) is None} | whole


def split(saved: dict[str, PyTree], topology: Topology, agents: dict[str, int]) -> Arrays:
    """The inverse of `join`: the initial arrays of all workers of this topology. `agents`: by group."""
    carry: Carry = jax.device_get(saved["carry"])
    arrays = save_learning(carry, ())
    for node, buffer in carry.replays.items():
        arrays[names.inserted(node)] = np.asarray(buffer.inserted)
        arrays[names.credit(node)] = np.asarray(buffer.credit)
    packed = {name: np.asarray(value) for name, value in saved["host"].items()}
    cut = packed.pop("cut", np.zeros(topology.blocks[-1].stop, np.bool_))
    for block in topology.blocks:
        fields = _split_columns(carry, block, agents, ~cut[block.start : block.stop])
        if packed:
            fields |= _split_episodes(packed, block)
        arrays |= {names.block(block.number, field): array for field, array in fields.items()}
    return arrays


def _split_columns(carry: Carry, block: EnvBlock, agents: dict[str, int], kept: np.ndarray) -> Arrays:
    """One block's fields of the carry; counters begin at 0 where the episode is not `kept` [E]."""
    assert isinstance(carry.actors, ActorStates)
    assert isinstance(carry.running, Running)
    envs = slice(block.start, block.stop)
    fields: Arrays = {names.LENGTH: carry.running.length[envs] * kept}
    if isinstance(carry.environments, EnvStates):
        fields |= leaf_arrays(names.ENVIRONMENT, _sliced(carry.environments.state, envs))
        fields[names.FIRST] = carry.environments.first[envs]
    for group, count in agents.items():
        columns = slice(block.start * count, block.stop * count)
        fields[names.reward(group)] = carry.running.reward[group][envs] * kept
        fields[names.discounted(group)] = carry.actors.discounted_sum[group][columns] * kept.repeat(count)
        fields |= leaf_arrays(names.memory(group), _sliced(carry.actors.memory[group], columns))
        if isinstance(carry.environments, EnvStates):
            fields |= leaf_arrays(names.observation(group), _sliced(carry.environments.observation[group], columns))
    return fields


def _sliced(tree: PyTree, rows: slice) -> PyTree:
    return jax.tree.map(lambda x: x[rows], tree)


def _split_episodes(packed: Arrays, block: EnvBlock) -> Arrays:
    """One block's fields of all packed episodes. Those that were cut are counted by the caller: none is marked here."""
    ends = np.cumsum(packed["lengths"])
    envs = slice(block.start, block.stop)
    steps = slice(int(ends[block.start] - packed["lengths"][block.start]), int(ends[block.stop - 1]))
    fields = {names.host(name): array[steps if name.startswith("actions/") else envs] for name, array in packed.items()}
    return fields | {names.host("cut"): np.zeros(len(block.envs), np.bool_)}
