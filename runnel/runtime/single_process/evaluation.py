"""Plays a fixed set of episodes with given parameters: the same environments, seeds and quotas each time.

Taking the first N episodes to end would favour short ones, so each environment has a quota: environment e plays its
episodes 0, 1, ... and those after its quota do not count. Nothing is shared with training: neither environments nor
random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import (
    Environment,
    HostEnvironment,
    HostStep,
    HostVector,
    JaxEnvironment,
    ended_episodes,
    is_traceable,
)
from runnel.graph.nodes import Graph
from runnel.ops import random
from runnel.ops.autoreset import autoreset_step
from runnel.runtime.programs.carry import EnvStates
from runnel.runtime.programs.loop import Loop
from runnel.types import Array, PyTree, zeros

AT_A_TIME: Final = 64
"""At most so many environments play side by side."""

LIMIT_STEPS: Final = 200_000
"""An episode that goes on for longer is cut: not every environment has a time limit."""

CALL_STEPS: Final = 256
"""Steps of one call of a compiled evaluation: between two calls it can be stopped."""

Beat = Callable[[int], None]
"""Called with the steps that were taken so far."""


class PlayedEpisodes(NamedTuple):
    """Episodes in a fixed order: first all environments' first ones, then their second ones, and so on."""

    returns: dict[str, np.ndarray]  # by group: [N], the mean over the group's agents
    lengths: np.ndarray  # [N]
    metrics: dict[str, np.ndarray]  # by name: [N] what the environment reported; NaN where it did not
    learner_returns: np.ndarray  # [N] sums of the rewards that learning sees; others where the environment has a score
    notes: tuple[str, ...] = ()  # for the user: episodes that were cut


def quotas(episodes: int, most: int | None = None) -> list[int]:
    """By environment: how many episodes it plays. `most`: environments that there are, where that cannot be chosen."""
    rounds = -(-episodes // min(AT_A_TIME, most or AT_A_TIME))
    envs = -(-episodes // rounds)
    return [episodes // envs + (e < episodes % envs) for e in range(envs)]


class Evaluator(Protocol):
    """Plays the same episodes whenever it is called."""

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes: ...

    def close(self) -> None: ...


def make_evaluator(
    graph: Graph, environment: Environment, seed: int, quota: Mapping[int, int], explore: bool = False
) -> Evaluator:
    """`quota`: by index of environment, how many episodes it plays."""
    indices = sorted(quota)
    if isinstance(environment, JaxEnvironment) and is_traceable(environment):
        return CompiledEvaluator(Loop(graph, environment, indices), seed, quota, explore)
    assert isinstance(environment, HostEnvironment)
    vector = environment.open(indices, seed)
    return HostEvaluator(Loop(graph, None, indices), vector, seed, quota, explore)


class _Tally:
    """Collects episodes as they end."""

    def __init__(self, groups: list[str], quota: Mapping[int, int]):
        self.indices, self.quota = sorted(quota), [quota[index] for index in sorted(quota)]
        self.returns: list[list[dict[str, float]]] = [[] for _ in self.indices]
        self.lengths: list[list[int]] = [[] for _ in self.indices]
        self.metrics: list[list[dict[str, float]]] = [[] for _ in self.indices]
        self.learner: list[list[float]] = [[] for _ in self.indices]
        self.groups, self.notes = groups, []

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
            self.returns[row].append(returns)
            self.lengths[row].append(length)
            self.metrics[row].append(own)

    def played(self) -> PlayedEpisodes:
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


class HostEvaluator:
    """Steps a vector of host environments; it stays open from one evaluation to the next."""

    def __init__(self, loop: Loop, vector: HostVector, seed: int, quota: Mapping[int, int], explore: bool):
        self.loop, self.vector, self.quota, self.explore = loop, vector, quota, explore
        self.seed = jnp.uint32(seed)
        self._specs = loop.graph.spec.groups
        self._act = jax.jit(self._act_all)

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes:
        return self.play_watched(params, beat)

    def play_watched(
        self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None,
        watch: Callable[[HostVector], None] | None = None,
    ) -> PlayedEpisodes:  # fmt: skip
        """`watch` is called before every step, with the vector as it stands."""
        count = len(self.loop.envs)
        out = self._room(count)
        tally = _Tally(list(self._specs), self.quota)
        memory = {group: self.loop.initial_memory(group) for group in self._specs}
        rewards = {group: np.zeros(count) for group in self._specs}
        lengths, first = np.zeros(count, np.int64), np.ones(count, np.bool_)
        self.vector.reset(out.observation)
        numbers = self.vector.episode_numbers()
        ended_episodes(self.vector)  # those before this evaluation
        for step in range(LIMIT_STEPS * max(self.quota.values())):
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
                # A game may go on after what ends an episode for learning: the loss of a life.
                for row in np.flatnonzero(numbers != before).tolist():
                    returns = {group: float(total[row]) for group, total in rewards.items()}
                    tally.add(row, returns, int(lengths[row]), reported.get(row, {}))
                    lengths[row] = 0
                    for total in rewards.values():
                        total[row] = 0.0
                if tally.done():
                    break
        self._note(tally, rewards, lengths)
        return tally.played()

    def close(self) -> None:
        self.vector.close()

    def _note(self, tally: _Tally, rewards: dict[str, np.ndarray], lengths: np.ndarray) -> None:
        failures = [failure for failure in self.vector.failures() if failure.episode < self.quota[failure.index]]
        if failures:
            cut = "1 episode was" if len(failures) == 1 else f"{len(failures)} episodes were"
            tally.notes.append(f"{cut} cut: environment {failures[0].index}: {failures[0].what}")
        endless = [row for row in range(len(lengths)) if tally.wants(row)]
        for row in endless:
            tally.add(row, {group: float(total[row]) for group, total in rewards.items()}, int(lengths[row]), {})
        if endless:
            tally.notes.append(f"{len(endless)} episodes did not end and were cut after {LIMIT_STEPS} steps")

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


class _Playing(NamedTuple):
    """Between two steps of a compiled evaluation."""

    environments: EnvStates
    memory: dict[str, PyTree]  # by group: [B, ...]
    rewards: dict[str, Array]  # by group: [E] of the episodes in progress
    lengths: Array  # [E]
    ended: Array  # [E] how many episodes have ended
    step: Array  # []
    found_returns: dict[str, Array]  # by group: [E, K]
    found_lengths: Array  # [E, K]
    found_metrics: dict[str, Array]  # by name: [E, K]


class CompiledEvaluator:
    """Steps JAX environments and acts in one program. It draws the numbers that `Stepped` environments draw."""

    def __init__(self, loop: Loop, seed: int, quota: Mapping[int, int], explore: bool):
        self.loop, self.quota, self.explore, self.seed = loop, quota, explore, jnp.uint32(seed)
        self._most = max(quota.values())
        self._begin, self._advance = jax.jit(self._first), jax.jit(self._steps, donate_argnums=1)

    def play(self, params: Mapping[str, PyTree], beat: Beat = lambda steps: None) -> PlayedEpisodes:
        now = self._begin()
        wanted = np.array([self.quota[index] for index in self.loop.envs])
        while True:
            now = self._advance(params, now)
            ended, step = jax.device_get((now.ended, now.step))
            beat(int(step))
            if (ended >= wanted).all() or step >= LIMIT_STEPS * self._most:
                break
        found = jax.device_get(now)
        tally = _Tally(self.loop.groups, self.quota)
        for row, count in enumerate(np.minimum(ended, wanted).tolist()):
            for k in range(count):
                returns = {group: float(values[row, k]) for group, values in found.found_returns.items()}
                metrics = {name: float(values[row, k]) for name, values in found.found_metrics.items()}
                tally.add(row, returns, int(found.found_lengths[row, k]), metrics)
        endless = [row for row in range(len(wanted)) if tally.wants(row)]
        for row in endless:
            returns = {group: float(values[row]) for group, values in found.rewards.items()}
            tally.add(row, returns, int(found.lengths[row]), {})
        if endless:
            tally.notes.append(f"{len(endless)} episodes did not end and were cut after {LIMIT_STEPS} steps")
        return tally.played()

    def close(self) -> None:
        pass

    def _first(self) -> _Playing:
        loop, envs = self.loop, len(self.loop.envs)
        environments = loop.reset(self.seed)
        room = jnp.zeros((envs, self._most), jnp.float32)
        named = jax.eval_shape(lambda state: self._step_environments(state, jnp.int32(0), None)[1], environments)
        return _Playing(
            environments,
            {group: loop.initial_memory(group) for group in loop.groups},
            {group: jnp.zeros(envs, jnp.float32) for group in loop.groups},
            jnp.zeros(envs, jnp.int32),
            jnp.zeros(envs, jnp.int32),
            jnp.zeros((), jnp.int32),
            dict.fromkeys(loop.groups, room),
            jnp.zeros((envs, self._most), jnp.int32),
            dict.fromkeys(_scalars(named), room),
        )

    def _steps(self, params: PyTree, now: _Playing) -> _Playing:
        wanted = jnp.asarray([self.quota[index] for index in self.loop.envs], jnp.int32)
        end = now.step + CALL_STEPS

        def goes_on(now: _Playing) -> Array:
            return (now.step < end) & jnp.any(now.ended < wanted)

        return jax.lax.while_loop(goes_on, lambda now: self._step(params, now), now)

    def _step_environments(self, environments: EnvStates, step: Array, actions: PyTree) -> tuple[Any, Any]:
        loop, environment = self.loop, self.loop.environment
        assert environment is not None
        base = random.base_key(self.seed, random.ENVIRONMENT)
        keys = random.environment_keys(base, step, jnp.asarray(np.asarray(loop.envs, np.int32)))
        fresh = jax.vmap(environment.reset)(keys[:, 1])
        if actions is None:  # only the types of what a step returns are asked for
            actions = loop.environment_actions({g: zeros(s.action, loop.columns(g)) for g, s in self._specs().items()})

        def step_one(state: PyTree, action: PyTree, key: Array, fresh: Any) -> Any:
            return autoreset_step(environment, state, action, key, fresh)

        state, after, timestep = jax.vmap(step_one)(environments.state, actions, keys[:, 0], fresh)
        done = timestep.terminated | timestep.truncated
        return (EnvStates(state, loop.by_column(after), done), timestep), timestep.metrics

    def _specs(self) -> Any:
        return self.loop.graph.spec.groups

    def _step(self, params: PyTree, now: _Playing) -> _Playing:
        loop, (_, observation, first) = self.loop, now.environments
        acts = _acts(loop, params, observation, now.memory, first, self.seed, now.step, self.explore)
        actions = loop.environment_actions({group: act.action for group, act in acts.items()})
        (environments, timestep), metrics = self._step_environments(now.environments, now.step, actions)
        done, rows = environments.first, jnp.arange(len(loop.envs))
        by_column = loop.by_column(timestep.reward)
        rewards = {
            group: now.rewards[group] + by_column[group].astype(jnp.float32).reshape(len(rows), -1).mean(1)
            for group in loop.groups
        }
        lengths = now.lengths + 1
        slot = jnp.where(done, now.ended, self._most)  # out of range where nothing ended: dropped

        def put(room: Array, values: Array) -> Array:
            return room.at[rows, slot].set(values.astype(room.dtype), mode="drop")

        return _Playing(
            environments,
            {group: act.memory for group, act in acts.items()},
            {group: jnp.where(done, 0.0, total) for group, total in rewards.items()},
            jnp.where(done, 0, lengths),
            now.ended + done,
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
