"""Stepping JAX environments whose policies are in the same worker: an unroll of a block is one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import JaxEnvironment
from runnel.graph.nodes import Graph
from runnel.ops import episodes as ops_episodes
from runnel.ops.episodes import Finished, Running
from runnel.planning import channels
from runnel.runtime.programs import episode_sums, totals
from runnel.runtime.programs.acting import ParameterSource
from runnel.runtime.programs.carry import ActorStates, Carry, EnvStates
from runnel.runtime.programs.episode_sums import EpisodeSums
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.unrolls import pack
from runnel.runtime.programs.versions import ParameterStamp
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import Arrays, BlockMemory, Journal
from runnel.runtime.workers.ports import OutPort
from runnel.runtime.workers.stream_headers import UnrollHeader, last_unroll
from runnel.types import Array, PyTree, Trajectory


class CompiledActing(NamedTuple):
    """A learner's state as far as acting needs it."""

    params: PyTree


class _CompiledBlock:
    """One block."""

    def __init__(
        self, graph: Graph, environment: JaxEnvironment, place: channels.EnvBlock, outs: dict[str, list[OutPort]]
    ):
        self.place, self.outs, self.envs = place, outs, place.envs
        self.loop = Loop(graph, environment, share=place.envs)
        self.unrolls = 0
        self.unroll = jax.jit(self._unroll)
        self.carry: Carry
        self.journal: Journal | None = None

    def _unroll(self, carry: Carry) -> tuple[Carry, dict[str, Trajectory], Finished]:
        return self.loop.unroll(carry)

    def takers(self, unroll: int) -> list[OutPort]:
        """The ports on which this unroll is still to be sent."""
        ports = [out for ports in self.outs.values() for out in ports]
        return [out for out in ports if out.takes(unroll) and unroll > last_unroll(out.last_header)]

    def entry(self) -> Arrays:
        """The arrays that the journal keeps between two unrolls."""
        saved = {names.journal_field(field): array for field, array in _fields(self.carry).items()}
        return {names.UNROLLS: np.asarray(self.unrolls), **saved}


class CompiledPlayer:
    """All blocks of one worker. Does what `Player` does."""

    between_unrolls = True

    def __init__(
        self,
        graph: Graph,
        environment: JaxEnvironment,
        places: Sequence[channels.EnvBlock],
        outs: dict[int, dict[str, list[OutPort]]],
        parameters: ParameterSource,
        seed: int,
        gate: Callable[[Callable[[], bool], int], ParameterStamp],
        beat: Callable[[], None],
        memory: BlockMemory,
        start: BlockStart,
    ):
        self.parameters, self.gate, self.seed = parameters, gate, seed
        self.groups, self.types = list(graph.spec.groups), channels.group_types(graph)
        self.blocks = [_CompiledBlock(graph, environment, place, outs[place.number]) for place in places]
        self.beat = beat
        for block in self.blocks:
            block.carry = self._begin(block, start.saved)
            block.unrolls = int(start.saved[names.ITERATION]) if start.saved else 0
            if any(outs[block.place.number].values()):  # else the nodes that take it are here, and share its fate
                self._keep(block, memory, start.rejoins)
        self._seen: list[tuple[dict[str, Trajectory], Finished]] = []
        self._ended: list[dict[str, Array]] = []  # metrics of the environments, by unroll

    def _begin(self, block: _CompiledBlock, saved: dict[str, np.ndarray]) -> Carry:
        loop = block.loop

        def begin(seed: Any) -> Carry:
            return Carry(
                seed=seed,
                iteration=jnp.int32(0),
                updates={group: jnp.int32(0) for group in self.groups},
                states={},
                replays={},
                window=(),
                actors=ActorStates(
                    {group: loop.initial_memory(group) for group in self.groups},
                    {group: jnp.zeros(loop.columns(group)) for group in self.groups},
                ),
                running=ops_episodes.begin(len(loop.envs), self.groups),
                environments=loop.reset(seed),
            )

        carry: Carry = jax.jit(begin)(jnp.uint32(self.seed))
        return _loaded(carry, partial(names.block, block.place.number), saved) if saved else carry

    def _keep(self, block: _CompiledBlock, memory: BlockMemory, rejoins: bool) -> None:
        entry = block.entry()
        block.journal = Journal(memory, {name: (a.shape, a.dtype) for name, a in entry.items()}, {}, {})
        if rejoins:
            found = block.journal.resume_entry(lambda unroll: not block.takers(unroll))
            block.carry = _loaded(block.carry, names.journal_field, found)
            block.unrolls = int(found[names.UNROLLS])
        else:
            block.journal.clear()
            block.journal.write(entry)

    def unroll(self) -> None:
        """One unroll of every block, handed over where others take it."""
        self._seen = []
        # All have made the same number, unless this worker replaces one that was lost between two of them.
        behind = min(block.unrolls for block in self.blocks)
        for block in [block for block in self.blocks if block.unrolls == behind]:
            outs = block.takers(behind)
            oldest = self.gate(lambda outs=outs: all(out.free() for out in outs), behind)
            for out in outs:
                out.claim(oldest.iteration)  # before parameters are read: these or newer ones will act
            stamp, params = self.parameters(behind)
            claimed = {id(out): out.claim(stamp.iteration) for out in outs}
            before = block.carry.actors
            assert isinstance(before, ActorStates)
            carry = block.carry._replace(
                iteration=np.int32(behind),
                updates={g: np.int32(stamp.versions[g]) for g in self.groups},
                states={g: CompiledActing(params[g]) for g in self.groups},
            )
            carry, trajectories, finished = block.unroll(carry)
            block.carry = carry._replace(states={})
            block.unrolls += 1
            self.beat()
            if block.journal is not None:
                # Before it is handed over: the streams' headers then say which entry to continue from.
                block.journal.write(block.entry())
            ended, finished = finished.env, finished._replace(env={})
            if not outs:
                self._seen.append((trajectories, finished))
                self._note(ended)
                continue
            for group, ports in block.outs.items():
                ended_returns, lengths = finished.returns[group], finished.lengths
                arrays = pack(self.types[group], trajectories[group], before.memory[group], ended_returns, lengths)
                arrays = jax.device_get(arrays)
                for out in ports:
                    if id(out) in claimed:
                        for to, value in zip(out.slots[claimed[id(out)]], arrays, strict=True):
                            to[...] = value
                        out.commit(UnrollHeader(behind, stamp.versions[group]))
            self._note(ended)  # now that they have been handed over

    def _note(self, ended: dict[str, Array]) -> None:
        if ended:
            self._ended.append(ended)

    def episode_sums(self) -> EpisodeSums:
        """Metrics of the episodes that ended in unrolls since this was last called."""
        ended, self._ended = self._ended, []
        sums: EpisodeSums = {}
        for each in jax.device_get(ended):
            episode_sums.add(sums, totals.sums_of(each))
        return sums

    def unrolled(self) -> tuple[dict[str, Trajectory], Finished]:
        """The newest unroll, for nodes in the same worker."""
        (seen,) = self._seen
        return seen

    def save(self) -> dict[str, np.ndarray]:
        saved: dict[str, np.ndarray] = {}
        for block in self.blocks:
            number = block.place.number
            saved |= {names.block(number, field): array for field, array in _fields(block.carry).items()}
        return saved


def _named(carry: Carry) -> dict[str, PyTree]:
    """The trees that a block carries from unroll to unroll, by field of a checkpoint's block."""
    actors, running, environments = carry.actors, carry.running, carry.environments
    assert isinstance(actors, ActorStates)
    assert isinstance(running, Running)
    assert isinstance(environments, EnvStates)
    return {
        names.ENVIRONMENT: environments.state,
        **{names.observation(group): seen for group, seen in environments.observation.items()},
        **{names.memory(group): memory for group, memory in actors.memory.items()},
    }


def _fields(carry: Carry) -> dict[str, np.ndarray]:
    """The arrays that a block carries from unroll to unroll, by field of a checkpoint's block."""
    actors, running, environments = jax.device_get((carry.actors, carry.running, carry.environments))
    saved = {
        names.leaf(field, i): np.asarray(leaf)
        for field, tree in _named(carry).items()
        for i, leaf in enumerate(jax.device_get(jax.tree.leaves(tree)))
    }
    saved[names.FIRST], saved[names.LENGTH] = environments.first, running.length
    for group in actors.memory:
        saved[names.reward(group)] = running.reward[group]
        saved[names.discounted(group)] = actors.discounted_sum[group]
    return saved


def _loaded(carry: Carry, name_of: Callable[[str], str], saved: dict[str, np.ndarray]) -> Carry:
    """The carry with a block's saved fields; `name_of` maps a field to its name in `saved`."""

    def array(field: str) -> np.ndarray:
        return saved[name_of(field)]

    def tree(field: str, like: PyTree) -> PyTree:
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, [array(names.leaf(field, i)) for i in range(len(leaves))])

    actors, running, environments = carry.actors, carry.running, carry.environments
    assert isinstance(actors, ActorStates)
    assert isinstance(running, Running)
    assert isinstance(environments, EnvStates)
    loaded = carry._replace(
        actors=ActorStates(
            {g: tree(names.memory(g), memory) for g, memory in actors.memory.items()},
            {g: array(names.discounted(g)).astype(s.dtype) for g, s in actors.discounted_sum.items()},
        ),
        running=Running({g: array(names.reward(g)) for g in running.reward}, array(names.LENGTH)),
        environments=EnvStates(
            tree(names.ENVIRONMENT, environments.state),
            {g: tree(names.observation(g), seen) for g, seen in environments.observation.items()},
            array(names.FIRST),
        ),
    )
    return jax.device_put(loaded)
