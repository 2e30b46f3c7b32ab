"""Making the trainer of a worker, and where it takes unrolls and gradients from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops import episodes as ops_episodes
from runnel.planning.channels import EnvBlock
from runnel.planning.pace import gathers
from runnel.runtime.programs import replay_shards
from runnel.runtime.programs.carry import Carry, ReplayState
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.stage import Stage
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.parameters import RemoteStates
from runnel.runtime.workers.ports import InPort, OutPort
from runnel.runtime.workers.trainer import Trainer, TrainerSettings, ValuePort


def copies_to_device() -> bool:
    """Whether unrolls are copied to the device; a CPU reads their slots in place."""
    return jax.default_backend() != "cpu"


def make_trainer(a: Assignment, remote_states: RemoteStates | None) -> Trainer:
    share = a.fragment.environments[a.spec.replica][0] if a.graph is not a.run_graph else 0
    stage = Stage(a.graph, a.fragment.nodes, key_offset=share)
    incoming, outgoing = _value_ports(a)
    settings = TrainerSettings(
        counts_episodes=bool(a.counted_groups),
        awaits_priorities=not a.free,
        pauses_in_waits=a.pauses,
        taken_singly=a.gathered,
        in_rotation=a.fragment.replicas if _in_rotation(a) else 1,
        copies_unrolls=copies_to_device(),
    )
    carry = _carry(a, stage)
    trainer = Trainer(
        a.context, a.graph, stage, Loop(a.graph), carry, incoming, outgoing, settings, remote_states, a.spmd
    )
    for credit, cut in zip(trainer.credits, trainer.schedule.cut_components, strict=True):
        if cut.samples:
            worker_checkpoint.load_credit(credit, cut.component, a.start.saved)
    return trainer


def _in_rotation(a: Assignment) -> bool:
    """Whether the replicas of its fragment take whole iterations in rotation."""
    return not a.learns and not a.steps_envs


def _carry(a: Assignment, stage: Stage) -> Carry:
    """The carry of the nodes here, as it was saved or from the beginning."""
    loop = Loop(a.graph)
    groups = list(dict.fromkeys(node.group for node in stage.nodes))
    learnt = {node.group for node in stage.nodes if node.traits.learns}

    def begin(seed: Any) -> Carry:
        return Carry(
            seed=seed,
            iteration=jnp.int32(0),
            updates={group: jnp.int32(0) for group in groups},
            states={group: loop.init_state(seed, group) for group in groups if group in learnt},
            replays={},
            window=ops_episodes.empty_window(a.counted_groups) if a.counted_groups else (),
            actors=(),
            running=(),
            environments=(),
        )

    fresh = jax.jit(begin)(jnp.uint32(a.seed))
    first = {g: worker_checkpoint.tree_of(names.initial(g), s, a.start.initial) for g, s in fresh.states.items()}
    carry = worker_checkpoint.load_learning(fresh._replace(states=jax.device_put(first)), a.start.saved)
    iteration = int(carry.iteration)
    if _in_rotation(a):
        iteration += (a.spec.replica - iteration) % a.fragment.replicas
    if a.spmd is not None:
        carry = a.spmd.everywhere(carry)
    for group in groups:
        if group not in learnt:
            carry.states[group] = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), a.published_state(group))
    return carry._replace(iteration=np.int32(iteration), replays=_replays(a, stage, loop))


def _replays(a: Assignment, stage: Stage, loop: Loop) -> dict[str, ReplayState]:
    """The replays of the nodes here. Several learners have a part of each: no device ever needs room for the whole."""

    def make() -> dict[str, ReplayState]:
        return {node.name: loop.empty_replay(node) for node in stage.nodes if node.traits.draws_batches}

    if a.spmd is None:
        return jax.device_put(worker_checkpoint.load_replays(jax.jit(make)(), a.start.saved))
    types = jax.eval_shape(make)
    places = replay_shards.shardings(types, a.spmd.mesh)
    loaded = worker_checkpoint.load_replays(types, a.start.saved)
    saved = [name for name, replay in loaded.items() if replay is not types[name]]
    made = jax.jit(make, out_shardings=places)() if len(saved) < len(types) else {}
    return {**made, **{name: a.spmd.placed(loaded[name], places[name]) for name in saved}}


def _value_ports(a: Assignment) -> tuple[list[ValuePort], list[ValuePort]]:
    """The ports of values received from remote nodes, and of those sent to them."""
    homes = {name: fragment for fragment in a.plan.fragments for name in fragment.workers()}
    incoming: dict[str, list[InPort]] = {}
    outgoing: dict[tuple[str, str], list[OutPort]] = {}
    for stream, port in a.ends.streams.items():
        if stream.kind == "value" and isinstance(port, InPort):
            incoming.setdefault(stream.node, []).append(port)
        elif stream.kind == "value" and isinstance(port, OutPort):
            outgoing.setdefault((stream.node, homes[stream.target].name), []).append(port)
    by_name = {fragment.name: fragment for fragment in a.plan.fragments}
    return (
        [ValuePort(a.graph.nodes[node], a.fragment, ports) for node, ports in incoming.items()],
        [ValuePort(a.graph.nodes[node], by_name[taker], ports) for (node, taker), ports in outgoing.items()],
    )


def make_unroll_collector(a: Assignment) -> tuple[BatchCollector | None, list[EnvBlock]]:
    """A collector of the unrolls of other workers, and the block of each of its sources; None if there are none."""
    sources, places = [], []
    for place in a.topology.blocks:
        ports = [port for group in a.consumed_groups for port in a.ends.ins("unroll", group=group, block=place.number)]
        if ports:
            sources.append(ports)
            places.append(place)
    if not sources:
        return None, []
    return BatchCollector(a.context, sources, len(sources), a.limit_iterations, "unrolls", in_order=a.in_order), places


def make_gradient_collector(a: Assignment) -> tuple[BatchCollector | None, list[str]]:
    """A collector of the values of workers that each compute from their own environments, and the node of each source;
    None if there are none. The values are taken one at a time, or at a barrier all together."""
    stepping = a.plan.stepping
    found = [
        (stream.node, port) for stream, port in a.ends.streams.items()
        if stream.kind == "value" and isinstance(port, InPort) and stream.source in stepping.workers()
        and gathers(stepping)
    ]  # fmt: skip
    if not found or a.consumed_groups:
        return None, []
    ports = [[port] for _, port in found]
    nodes = [node for node, _ in found]
    return BatchCollector(a.context, ports, 1, a.limit_iterations, "gradients", in_order=not a.free), nodes
