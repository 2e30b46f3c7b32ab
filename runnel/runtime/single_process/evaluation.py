"""Plays a fixed set of episodes with given parameters: the same environments, seeds and quotas each time.

Taking the first N episodes to end would favour short ones, so each environment has a quota: environment e plays its
episodes 0, 1, ... and those after its quota do not count. An episode that a failure of its environment truncates keeps
its place and has no return. Nothing is shared with training: neither environments nor random numbers.

The evaluators of host environments and of JAX environments are one file because they must agree on which episodes
count, in which order they are returned, and how truncated ones are treated: the shared code for this is at the top.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import (
    Environment,
    Failure,
    HostEnvironment,
    HostStep,
    HostVector,
    JaxEnvironment,
    cut_with_others,
    ended_episodes,
    is_traceable,
)
from runnel.graph.nodes import Graph
from runnel.ops import random
from runnel.ops.autoreset import autoreset_step, reset_of
from runnel.recording.array_store import named_leaves
from runnel.runtime.programs.carry import EnvStates
from runnel.runtime.programs.loop import Loop
from runnel.types import AgentSpec, Array, PyTree, zeros

AT_A_TIME: Final = 64
"""The largest number of environments that are stepped side by side."""

LIMIT_STEPS: Final = 200_000
"""The length at which an episode is truncated: not every environment has a time limit."""

CALL_STEPS: Final = 256
"""Steps of one call of a compiled evaluation: between two calls it can be stopped."""

Beat = Callable[[int], None]
"""Called with the number of steps so far."""


class PlayedEpisodes(NamedTuple):
    """Episodes in a fixed order: first all environments' first ones, then their second ones, and so on."""

    returns: dict[str, np.ndarray]
    """By group: [N], the mean over the group's agents; NaN for truncated episodes, and if the group does not play."""
    lengths: np.ndarray  # [N]
    metrics: dict[str, np.ndarray]  # by name: [N] what the environment reported; NaN where it did not
    learner_returns: np.ndarray  # [N] sums of the rewards that learning sees; others where the environment has a score
    notes: tuple[str, ...] = ()  # for the user: episodes that were cut

    def problem(self) -> str:
        """The reason why the policy has no score: no episode has a return. "" if one has."""
        if not all(np.isnan(values).all() for values in self.returns.values()):
            return ""
        return f"no episode is left: {'; '.join(self.notes) or 'all returns are NaN'}"


def quotas(episodes: int, most: int | None = None) -> list[int]:
    """The number of episodes of each environment. `most`: the number of environments, if it is fixed."""
    rounds = -(-episodes // min(AT_A_TIME, most or AT_A_TIME))
    envs = -(-episodes // rounds)
    return [episodes // envs + (e < episodes % envs) for e in range(envs)]


class Evaluator(Protocol):
    """Plays the same episodes whenever it is called."""

    ended: int
    """The number of episodes in play that have ended; up to date whenever `beat` is called."""

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes: ...

    def close(self) -> None: ...


def make_evaluator(
    graph: Graph, environment: Environment, seed: int, quota: Mapping[int, int], explore: bool = False
) -> Evaluator:
    """`quota`: the number of episodes by index of environment."""
    indices = sorted(quota)
    if isinstance(environment, JaxEnvironment) and is_traceable(environment):
        return CompiledEvaluator(Loop(graph, environment, indices), seed, quota, explore)
    assert isinstance(environment, HostEnvironment)
    vector = environment.open(indices, seed)
    return HostEvaluator(Loop(graph, None, indices), vector, seed, quota, explore)


class _EpisodeCollector:
    """Collects episodes as they end."""

    def __init__(self, specs: Mapping[str, AgentSpec], quota: Mapping[int, int]):
        self.indices, self.quota = sorted(quota), [quota[index] for index in sorted(quota)]
        self.returns: list[list[dict[str, float]]] = [[] for _ in self.indices]
        self.lengths: list[list[int]] = [[] for _ in self.indices]
        self.metrics: list[list[dict[str, float]]] = [[] for _ in self.indices]
        self.learner: list[list[float]] = [[] for _ in self.indices]
        self.specs, self.groups, self.notes = specs, list(specs), []
        self.cut = 0  # episodes without a return
        self.endless, self.not_begun = 0, 0  # those that did not end, and those after them

    def wants(self, row: int) -> bool:
        return len(self.lengths[row]) < self.quota[row]

    def done(self) -> bool:
        return not any(map(self.wants, range(len(self.indices))))

    def add(self, row: int, returns: dict[str, float], length: int, metrics: dict[str, float]) -> None:
        if self.wants(row):
            self.learner[row].append(float(np.mean(list(returns.values()))))
            own = dict(metrics)
            # An environment that scores otherwise than it rewards says so: for each group, or for all together.
            scores = {group: own.pop(f"{group}/return") for group in self.groups if f"{group}/return" in own}
            overall = own.pop("return", None)
            if not scores and overall is not None:
                scores = dict.fromkeys(self.groups, overall)
            if scores:
                returns = {**returns, **scores}
                lengths = [own.pop(f"{group}/length", None) for group in self.groups] + [own.pop("length", None)]
                length = int(next((each for each in lengths if each is not None), length))
            broken = any(map(math.isnan, returns.values()))
            plays = {group: spec.plays_in(self.indices[row]) and not broken for group, spec in self.specs.items()}
            self.returns[row].append({group: each if plays[group] else np.nan for group, each in returns.items()})
            self.lengths[row].append(length)
            self.metrics[row].append(own)

    def add_endless(self, row: int, returns: dict[str, float], length: int) -> None:
        """Records an episode that does not end with its return so far. Later episodes of its row, which cannot begin,
        keep their places without a return."""
        if self.wants(row):
            self.endless += 1
            self.add(row, returns, length, {})
            while self.wants(row):
                self.not_begun += 1
                self._add_nothing(row)

    def leave_out(self, row: int) -> None:
        """Records an episode that a failure truncated, or that could not begin."""
        if self.wants(row):
            self.cut += 1
            self._add_nothing(row)

    def _add_nothing(self, row: int) -> None:
        self.returns[row].append(dict.fromkeys(self.groups, np.nan))
        self.learner[row].append(np.nan)
        self.lengths[row].append(0)
        self.metrics[row].append({})

    def played(self) -> PlayedEpisodes:
        if self.endless:
            after = f", and {self.not_begun} after them did not begin" if self.not_begun else ""
            self.notes.append(f"episodes without an end, cut after {LIMIT_STEPS:,} steps: {self.endless}{after}")
        rows = range(len(self.indices))
        order = [(k, e) for k in range(max(self.quota)) for e in rows if k < len(self.lengths[e])]
        names = dict.fromkeys(name for row in self.metrics for each in row for name in each)
        return PlayedEpisodes(
            {group: np.array([self.returns[e][k][group] for k, e in order], np.float64) for group in self.groups},
            np.array([self.lengths[e][k] for k, e in order], np.int64),
            {name: np.array([self.metrics[e][k].get(name, np.nan) for k, e in order]) for name in names},
            np.array([self.learner[e][k] for k, e in order], np.float64),
            tuple(self.notes),
        )


class _FailureWatch:
    """Records the failures of a vector from now on, and the episodes that they truncate."""

    def __init__(self, vector: HostVector):
        self.vector = vector
        vector.failures()  # those before
        cut_with_others(vector)
        self.found: list[Failure] = []  # the oldest
        self.cut: set[tuple[int, int]] = set()  # rows and numbers of episodes

    def look(self) -> None:
        for failure in self.vector.failures():
            self.found = self.found or [failure]
            self.cut.add((failure.row, failure.episode))
        self.cut.update(cut_with_others(self.vector))


class HostEvaluator:
    """Steps a vector of host environments; it stays open from one evaluation to the next."""

    def __init__(self, loop: Loop, vector: HostVector, seed: int, quota: Mapping[int, int], explore: bool):
        self.loop, self.vector, self.quota, self.explore = loop, vector, quota, explore
        self.seed, self.ended = jnp.uint32(seed), 0
        self._specs = loop.graph.spec.groups
        self._act = jax.jit(self._act_all)

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes:
        return self.play_watched(params, beat)

    def play_watched(
        self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None,
        watch: Callable[[HostVector], None] | None = None,
    ) -> PlayedEpisodes:  # fmt: skip
        """`watch` is called with the vector before every step."""
        count = len(self.loop.envs)
        out = self._room(count)
        collector, self.ended = _EpisodeCollector(self._specs, self.quota), 0
        memory = {group: self.loop.initial_memory(group) for group in self._specs}
        rewards = {group: np.zeros(count) for group in self._specs}
        lengths, first = np.zeros(count, np.int64), np.ones(count, np.bool_)
        failures = _FailureWatch(self.vector)
        self.vector.reset(out.observation)
        numbers = self.vector.episode_numbers()
        for row, number in enumerate(numbers.tolist()):
            for _ in range(number):  # those before could not begin
                collector.leave_out(row)
        ended_episodes(self.vector)  # those before this evaluation
        for step in range(0 if collector.done() else LIMIT_STEPS * max(self.quota.values())):
            if watch is not None:
                watch(self.vector)
            actions, memory = self._act(params, out.observation, memory, first, jnp.int32(step))
            # A copy: what JAX gives is read-only, and environments may keep what they are given.
            self.vector.step({group: np.array(action) for group, action in actions.items()}, out)
            beat(step + 1)
            lengths += 1
            for group, spec in self._specs.items():
                rewards[group] += out.reward[group].reshape(count, spec.agents).mean(1)
            first = out.terminated | out.truncated
            if first.any():
                reported = {each.row: each.values for each in ended_episodes(self.vector)}
                before, numbers = numbers, self.vector.episode_numbers()
                failures.look()
                # A game may continue after an episode has ended for learning, by the loss of a life.
                for row in np.flatnonzero(numbers != before).tolist():
                    if (row, int(before[row])) in failures.cut:
                        collector.leave_out(row)
                    else:
                        returns = {group: float(total[row]) for group, total in rewards.items()}
                        collector.add(row, returns, int(lengths[row]), reported.get(row, {}))
                    for _ in range(int(numbers[row] - before[row]) - 1):  # those that could not begin
                        collector.leave_out(row)
                    lengths[row] = 0
                    for total in rewards.values():
                        total[row] = 0.0
            late = np.flatnonzero(lengths >= LIMIT_STEPS).tolist()
            for row in late:
                returns = {group: float(total[row]) for group, total in rewards.items()}
                collector.add_endless(row, returns, int(lengths[row]))
            if late or first.any():
                self.ended = sum(map(len, collector.lengths))
                if collector.done():
                    break
        failures.look()
        self._note(collector, failures.found)
        return collector.played()

    def close(self) -> None:
        self.vector.close()

    def _note(self, collector: _EpisodeCollector, failures: list[Failure]) -> None:
        if collector.cut:
            cut = "1 episode was" if collector.cut == 1 else f"{collector.cut} episodes were"
            why = f": environment {failures[0].index}: {failures[0].what}" if failures else ""
            collector.notes.append(f"{cut} cut and left out{why}")

    def _room(self, count: int) -> HostStep:
        def each(make: Callable[[Any], Any]) -> dict[str, Any]:
            return {group: make(spec) for group, spec in self._specs.items()}

        return HostStep(
            observation=each(lambda spec: zeros(spec.observation, count * spec.agents)),
            reward=each(lambda spec: np.zeros(count * spec.agents, jnp.result_type(float))),
            terminated=np.zeros(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            last_observation=each(lambda spec: zeros(spec.observation, count * spec.agents)),
        )

    def _act_all(self, params: PyTree, observation: PyTree, memory: PyTree, first: Array, step: Array) -> Any:
        acts = _acts(self.loop, params, observation, memory, first, self.seed, step, self.explore)
        return {group: act.action for group, act in acts.items()}, {group: act.memory for group, act in acts.items()}


def _acts(
    loop: Loop, params: PyTree, observation: PyTree, memory: PyTree, first: Array, seed: Array, step: Array,
    explore: bool,
) -> dict[str, Any]:  # fmt: skip
    return {
        group: loop.act(
            group, params[group], observation[group], memory[group], loop.each_column(first, group),
            loop.act_keys(seed, group, step), loop.indices(group), explore,
        )
        for group in loop.groups
    }  # fmt: skip


class _EpisodesInProgress(NamedTuple):
    """The state of a compiled evaluation between two steps. Its fields are one list because a compiled loop carries one
    state."""

    seed: Array  # [] which the program does not know: one compiled program serves all seeds
    environments: EnvStates
    memory: dict[str, PyTree]  # by group: [B, ...]
    rewards: dict[str, Array]  # by group: [E] of the episodes in progress
    lengths: Array  # [E]
    ended: Array  # [E] how many episodes have ended; all of them after one that is too long
    counted: Array  # [E] how many of them have a return
    endless: Array  # [E] whether the last of these went on for too long
    step: Array  # []
    found_returns: dict[str, Array]  # by group: [E, K]
    found_lengths: Array  # [E, K]
    found_metrics: dict[str, Array]  # by name: [E, K]


class CompiledEvaluator:
    """Steps JAX environments and acts in one program, with the random numbers of `Stepped` environments."""

    def __init__(self, loop: Loop, seed: int, quota: Mapping[int, int], explore: bool):
        self.loop, self.quota, self.explore, self.seed = loop, quota, explore, jnp.uint32(seed)
        self.ended = 0
        self.most = max(quota.values())  # episodes of an environment
        self._begin, self._advance = jax.jit(self.first), jax.jit(self.steps, donate_argnums=1)
        self._text: tuple[str, list[bytes]] | None = None  # what they compile

    def with_seed(self, seed: int) -> CompiledEvaluator:
        """This program, for episodes of another seed."""
        other = copy.copy(self)
        other.seed, other.ended = jnp.uint32(seed), 0
        return other

    def same_program(self, other: CompiledEvaluator) -> bool:
        """Whether both compile to the same program, as algorithms do that differ only in settings that acting does not
        use."""
        return self.quota == other.quota and self._traced() == other._traced()

    def _traced(self) -> tuple[str, list[bytes]]:
        if self._text is None:
            params = {group: state.params for group, state in self.loop.graph.states.items()}
            traced = jax.make_jaxpr(self.steps)(params, jax.eval_shape(self.first, self.seed))
            text = re.sub(r" at 0x[0-9a-f]+", "", str(traced.jaxpr))  # of functions that only derivatives call
            self._text = text, [array.tobytes() for array in named_leaves(traced.consts).values()]
        return self._text

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes:
        now = self._begin(self.seed)
        wanted = np.array([self.quota[index] for index in self.loop.envs])
        while True:
            now = self._advance(params, now)
            ended, step = jax.device_get((now.ended, now.step))
            self.ended = int(np.minimum(ended, wanted).sum())
            beat(int(step))
            if (ended >= wanted).all():
                break
        return self.read(jax.device_get(now))

    def read(self, found: _EpisodesInProgress) -> PlayedEpisodes:
        """The episodes that were played, once the results are on the host."""
        wanted = np.array([self.quota[index] for index in self.loop.envs])
        collector, broken = _EpisodeCollector(self._specs(), self.quota), 0
        for row, count in enumerate(np.minimum(found.counted, wanted).tolist()):
            for k in range(count):
                returns = {group: float(values[row, k]) for group, values in found.found_returns.items()}
                metrics = {name: float(values[row, k]) for name, values in found.found_metrics.items()}
                length = int(found.found_lengths[row, k])
                if found.endless[row] and k == count - 1:
                    collector.add_endless(row, returns, length)
                else:
                    collector.add(row, returns, length, metrics)
                broken += any(map(math.isnan, returns.values()))
        if broken:
            collector.notes.append(f"{broken} episodes were left out: their return is NaN")
        return collector.played()

    def close(self) -> None:
        pass

    def first(self, seed: Array) -> _EpisodesInProgress:
        """The state before the first step. Pure, as is `steps`."""
        loop, envs = self.loop, len(self.loop.envs)
        environments = loop.reset(seed)
        room = jnp.zeros((envs, self.most), jnp.float32)
        named = jax.eval_shape(lambda state: self._step_environments(seed, state, jnp.int32(0), None)[1], environments)
        return _EpisodesInProgress(
            seed,
            environments,
            {group: loop.initial_memory(group) for group in loop.groups},
            {group: jnp.zeros(envs, jnp.float32) for group in loop.groups},
            jnp.zeros(envs, jnp.int32),
            jnp.zeros(envs, jnp.int32),
            jnp.zeros(envs, jnp.int32),
            jnp.zeros(envs, jnp.bool_),
            jnp.zeros((), jnp.int32),
            dict.fromkeys(loop.groups, room),
            jnp.zeros((envs, self.most), jnp.int32),
            dict.fromkeys(_scalars(named), room),
        )

    def steps(self, params: PyTree, now: _EpisodesInProgress) -> _EpisodesInProgress:
        """One call's worth of steps, fewer if all episodes have ended."""
        wanted = jnp.asarray([self.quota[index] for index in self.loop.envs], jnp.int32)
        end = now.step + CALL_STEPS

        def goes_on(now: _EpisodesInProgress) -> Array:
            return (now.step < end) & jnp.any(now.ended < wanted)

        return jax.lax.while_loop(goes_on, lambda now: self._step(params, now), now)

    def _step_environments(self, seed: Array, environments: EnvStates, step: Array, actions: PyTree) -> tuple[Any, Any]:
        loop, environment = self.loop, self.loop.environment
        assert environment is not None
        base = random.base_key(seed, random.ENVIRONMENT)
        numbers = jnp.asarray(np.asarray(loop.envs, np.int32))
        keys = random.environment_keys(base, step, numbers)
        fresh = jax.vmap(reset_of(environment))(keys[:, 1], numbers)
        if actions is None:  # only the types of what a step returns are asked for
            actions = loop.environment_actions({g: zeros(s.action, loop.columns(g)) for g, s in self._specs().items()})

        def step_one(state: PyTree, action: PyTree, key: Array, fresh: Any) -> Any:
            return autoreset_step(environment, state, action, key, fresh)

        state, after, timestep = jax.vmap(step_one)(environments.state, actions, keys[:, 0], fresh)
        done = timestep.terminated | timestep.truncated
        return (EnvStates(state, loop.by_column(after), done), timestep), timestep.metrics

    def _specs(self) -> Any:
        return self.loop.graph.spec.groups

    def _step(self, params: PyTree, now: _EpisodesInProgress) -> _EpisodesInProgress:
        loop, (_, observation, first) = self.loop, now.environments
        acts = _acts(loop, params, observation, now.memory, first, now.seed, now.step, self.explore)
        actions = loop.environment_actions({group: act.action for group, act in acts.items()})
        (environments, timestep), metrics = self._step_environments(now.seed, now.environments, now.step, actions)
        done, rows = environments.first, jnp.arange(len(loop.envs))
        by_column = loop.by_column(timestep.reward)
        rewards = {
            group: now.rewards[group] + by_column[group].astype(jnp.float32).reshape(len(rows), -1).mean(1)
            for group in loop.groups
        }
        lengths = now.lengths + 1
        late = ~done & (lengths >= LIMIT_STEPS) & (now.ended < self.most)
        counts = (done | late) & (now.ended < self.most)
        slot = jnp.where(counts, now.ended, self.most)  # out of range where nothing ended: dropped

        def put(room: Array, values: Array) -> Array:
            return room.at[rows, slot].set(values.astype(room.dtype), mode="drop")

        return _EpisodesInProgress(
            now.seed,
            environments,
            {group: act.memory for group, act in acts.items()},
            {group: jnp.where(done, 0.0, total) for group, total in rewards.items()},
            jnp.where(done, 0, lengths),
            jnp.where(late, self.most, now.ended + done),
            now.counted + counts,
            now.endless | late,
            now.step + 1,
            {group: put(now.found_returns[group], total) for group, total in rewards.items()},
            put(now.found_lengths, lengths),
            {name: put(now.found_metrics[name], value) for name, value in _scalars(metrics).items()},
        )


def _scalars(metrics: PyTree) -> dict[str, Any]:
    """An environment's metrics by name: nested dicts (those of groups) joined by a slash."""
    found: dict[str, Any] = {}
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        if isinstance(value, dict):
            found |= {f"{name}/{inner}": each for inner, each in _scalars(value).items()}
        else:
            found[name] = value
    return found
