"""Unrolls of host environments: NumPy slots that the environments fill in place while a compiled `act` answers."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from runnel.environment import HostStep, HostVector
from runnel.graph import Graph
from runnel.runtime.history import History
from runnel.runtime.loop import Carry, Loop
from runnel.types import Array, PyTree, Trajectory, zeros


class Unroll(NamedTuple):
    """What an unroll of host environments saw, in arrays that may be memory of a slot."""

    observation: dict[str, PyTree]  # by group: [T, B, ...]
    action: dict[str, Array]  # by group: [T, B, ...]
    extras: dict[str, PyTree]  # by group: [T, B, ...]
    reward: dict[str, Array]  # by group: [T, B]
    last_observation: dict[str, PyTree]  # by group: [T, B, ...]
    terminated: Array  # [T, E]
    truncated: Array  # [T, E]
    first: Array  # [T, E]


def trajectories(loop: Loop, carry: Carry, unroll: Unroll) -> dict[str, Trajectory]:
    """An unroll as each group's trajectory; `carry` is as it was before the unroll."""
    return {
        group: loop.trajectory(
            carry, group, unroll.observation[group], unroll.action[group], unroll.extras[group], unroll.reward[group],
            unroll.terminated, unroll.truncated, unroll.last_observation[group], unroll.first,
        )
        for group in loop.groups
    }  # fmt: skip


class Slot:
    """Memory for one unroll, and the views of it that each step reads and writes."""

    def __init__(self, graph: Graph):
        steps, envs = graph.unroll, graph.envs
        acts = {node.group: node.output for node in graph.of_kind("act")}

        def each(make: Any) -> dict[str, Any]:
            return {group: make(group, agents) for group, agents in graph.spec.groups.items()}

        # One row more than the unroll has steps: the last step's successor, from which the next unroll starts.
        self.observation = each(lambda g, agents: zeros(agents.observation, steps + 1, graph.columns(g)))
        first = np.ones((steps + 1, envs), np.bool_)
        self.first = first
        self.unroll = Unroll(
            observation=_rows(self.observation, slice(steps)),
            action=each(lambda g, _: np.zeros((steps, *acts[g].action.shape), acts[g].action.dtype)),
            extras=each(lambda g, _: jax.tree.map(lambda x: np.zeros((steps, *x.shape), x.dtype), acts[g].extras)),
            reward=each(lambda g, _: np.zeros((steps, graph.columns(g)), jax.numpy.result_type(float))),
            last_observation=each(lambda g, agents: zeros(agents.observation, steps, graph.columns(g))),
            terminated=np.zeros((steps, envs), np.bool_),
            truncated=np.zeros((steps, envs), np.bool_),
            first=first[:steps],
        )
        # Views are made once: making them costs more than a step of a small environment.
        self.seen = [_rows(self.observation, t) for t in range(steps + 1)]
        self.actions = [_rows(self.unroll.action, t) for t in range(steps)]
        self.acted = [jax.tree.leaves((self.actions[t], _rows(self.unroll.extras, t))) for t in range(steps)]
        self.steps = [
            HostStep(
                observation=self.seen[t + 1],
                reward=_rows(self.unroll.reward, t),
                terminated=self.unroll.terminated[t],
                truncated=self.unroll.truncated[t],
                last_observation=_rows(self.unroll.last_observation, t),
            )
            for t in range(steps)
        ]


class HostUnroller:
    """Plays unrolls on a vector of host environments."""

    def __init__(self, loop: Loop, vector: HostVector):
        self.loop, self.graph, self.vector = loop, loop.graph, vector
        self.slot = Slot(self.graph)
        self.history = History(self.graph.envs)
        self.environment_s, self.act_s = 0.0, 0.0
        self._act = jax.jit(self._act_all)
        self._keys = jax.jit(self._keys_of_unroll)
        self._structure: Any = None  # of the parameters
        self._remembers = any(jax.tree.leaves(loop.initial_memory(group)) for group in loop.groups)
        vector.reset(self.slot.seen[-1])

    def unroll(self, carry: Carry) -> tuple[Unroll, dict[str, PyTree]]:
        """One unroll, and the memory after it.

        What it gives is the slot's own memory: whoever reads it must have finished before the next unroll.
        """
        slot, step = self.slot, self.vector.step
        _copy(slot.seen[0], slot.seen[-1])
        slot.first[0] = slot.first[-1]
        params = {group: state.params for group, state in carry.states.items()}
        # Leaves, not trees, go into and come out of the program: walking trees takes longer than a small network.
        leaves, self._structure = jax.tree.flatten(params)
        memory = carry.actors.memory
        keys = np.asarray(self._keys(carry.seed, jax.numpy.int32(self.history.end)))
        clock = time.perf_counter
        for t in range(self.graph.unroll):
            started = clock()
            # Only memory cares where an episode begins, and every array passed costs microseconds.
            first = slot.first[t] if self._remembers else None
            acts, memory = self._act(leaves, slot.seen[t], memory, first, keys[t])
            for row, value in zip(slot.acted[t], acts, strict=True):
                row[...] = np.asarray(value)
            acted = clock()
            out = slot.steps[t]
            step(slot.actions[t], out)
            np.logical_or(out.terminated, out.truncated, out=slot.first[t + 1])
            self.act_s += acted - started
            self.environment_s += clock() - acted
        self._complete(slot)
        return slot.unroll, memory

    def save(self) -> Any:
        """The episodes in progress, and which of them [E] are cut."""
        return self.history.episodes(self.vector.episode_numbers().tolist())

    def load(self, episodes: Any, end: int) -> None:
        """Stands after step `end` of the run, with these episodes in progress."""
        self.vector.restore(episodes, self.slot.seen[-1])
        self.history.restore(episodes, end)
        self.slot.first[-1] = self.history.began == end

    def _keys_of_unroll(self, seed: Array, start: Array) -> Array:
        """[T, columns of all groups, ...] the keys of every step, as numbers: drawn in one call instead of T."""
        steps = start + jax.numpy.arange(self.graph.unroll, dtype=jax.numpy.int32)
        keys = [jax.vmap(partial(self.loop.act_keys, seed, group))(steps) for group in self.loop.groups]
        return jax.random.key_data(jax.numpy.concatenate(keys, axis=1))

    def _act_all(
        self, leaves: list[Array], observation: PyTree, memory: PyTree, first: Array | None, keys: Array
    ) -> tuple[list[Array], PyTree]:
        """Acts for every group; gives the leaves of actions and extras, and the memories after."""
        params = jax.tree.unflatten(self._structure, leaves)
        actions, extras, memories = {}, {}, {}
        first = jax.numpy.zeros(self.graph.envs, jax.numpy.bool_) if first is None else first
        for group in self.loop.groups:
            began = self.loop.each_column(first, group)
            columns = self.graph.columns(group)
            own, keys = jax.random.wrap_key_data(keys[:columns]), keys[columns:]
            indices = self.loop.indices(group)
            act = self.loop.act(group, params[group], observation[group], memory[group], began, own, indices)
            actions[group], memories[group], extras[group] = act.action, act.memory, act.extras
        return jax.tree.leaves((actions, extras)), memories

    def _complete(self, slot: Slot) -> None:
        """The last step's successor, where no episode ended and so nobody wrote it; and the actions' record."""
        going = ~slot.first[-1]
        for group, agents in self.graph.spec.groups.items():
            rows = np.repeat(going, agents.agents)
            for last, after in zip(jax.tree.leaves(slot.steps[-1].last_observation[group]),
                                   jax.tree.leaves(slot.seen[-1][group]), strict=True):  # fmt: skip
                last[rows] = after[rows]
        actions = {group: self._by_environment(action, group) for group, action in slot.unroll.action.items()}
        self.history.add(actions, slot.first[1:])

    def _by_environment(self, action: np.ndarray, group: str) -> np.ndarray:
        agents = self.graph.spec.groups[group].agents
        return action if agents == 1 else action.reshape(action.shape[0], self.graph.envs, agents, *action.shape[2:])


def _rows(tree: PyTree, rows: Any) -> PyTree:
    return jax.tree.map(lambda x: x[rows], tree)


def _copy(target: PyTree, source: PyTree) -> None:
    for to, value in zip(jax.tree.leaves(target), jax.tree.leaves(source), strict=True):
        to[...] = value
