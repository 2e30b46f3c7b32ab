"""Steps a JAX environment from the host, one step at a time: for evaluation, and where it cannot be traced.

It draws the very numbers that a traced rollout draws (`runnel.ops.random`), and begins episodes in the same
place (`runnel.ops.autoreset`), so both see the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import Episode, EpisodeMetrics, Failure, HostStep, JaxEnvironment, TimeStep
from runnel.envs.infos import EndedEpisodes, number
from runnel.errors import UserError
from runnel.ops.autoreset import autoreset_step, reset_of
from runnel.ops.env_metrics import named
from runnel.ops.random import ENVIRONMENT, base_key, environment_keys, reset_keys
from runnel.types import Array, EnvSpec, PyTree


class Stepped:
    """A host environment made of a JAX environment."""

    def __init__(self, environment: JaxEnvironment):
        self.environment = environment
        self.spec: EnvSpec = environment.spec
        # Compiled once, for all vectors that are opened.
        self._programs = _Programs(
            reset=jax.jit(partial(_reset, environment)),
            step=jax.jit(partial(_step, environment)),
            reset_after=jax.jit(partial(_reset_after, environment)),
        )

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> SteppedVector:
        if render and not hasattr(self.environment, "render"):
            raise UserError(f"{self.spec.name} cannot be rendered: expected a method `render(state)`, found none")
        return SteppedVector(self.environment, self._programs, indices, seed)


class _Programs(NamedTuple):
    reset: Callable[..., Any]
    step: Callable[..., Any]
    reset_after: Callable[..., Any]


class SteppedState(NamedTuple):
    """The whole state of a `SteppedVector`; restoring it continues from this step."""

    environment: PyTree  # [n, ...] the environments' own state
    observation: PyTree  # [n, ...] what they show now
    step: int  # steps taken since the run began
    episodes: np.ndarray  # [n] the number of each one's episode


class SteppedVector:
    """Several JAX environments, stepped together in one compiled call.

    `state` can be read and set at any time between two steps.
    """

    state: SteppedState
    stateful = True
    watch: Callable[[int], None] | None = None  # never called: the environments are one program

    def __init__(self, environment: JaxEnvironment, programs: _Programs, indices: Sequence[int], seed: int):
        self._environment = environment
        self._spec = environment.spec
        self._indices = np.asarray(indices, np.uint32)
        self._base = base_key(seed, ENVIRONMENT)
        self._programs = programs
        self._ended = EndedEpisodes()

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._ended.fetch()
        environment, first = self._programs.reset(self._base, self._indices)
        self.state = SteppedState(environment, first, 0, np.zeros(len(self._indices), np.int64))
        self._write(observation, first)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        environment, observation, timestep = self._programs.step(
            self.state.environment, self._from_rows(action), self._base, self.state.step, self._indices
        )
        timestep = jax.device_get(timestep)
        ended = timestep.terminated | timestep.truncated
        self._write(out.observation, observation)
        self._write(out.reward, timestep.reward)
        out.terminated[:] = timestep.terminated
        out.truncated[:] = timestep.truncated & ~timestep.terminated
        if ended.any():
            self._write(out.last_observation, timestep.observation, ended)
            self._note(named(timestep.metrics), ended)
        self.state = SteppedState(environment, observation, self.state.step + 1, self.state.episodes + ended)

    def episode_numbers(self) -> np.ndarray:
        return self.state.episodes.copy()

    def restore(
        self, episodes: Sequence[Episode], observation: dict[str, PyTree], step: int | None = None
    ) -> np.ndarray:
        """As `HostVector.restore`; `step` is the number of steps that the run had taken.

        The keys of resets and steps depend on it. It can be omitted while any environment is in its first episode,
        whose length equals it.
        """
        if step is None:
            step = next((_length(episode) for episode in episodes if episode.number == 0), None)
        if step is None:
            raise ValueError("every environment is past its first episode: `step` must be given")
        rows = [self._replay(row, episode, step) for row, episode in enumerate(episodes)]
        environment, current = jax.tree.map(lambda *parts: jnp.concatenate(parts), *rows)
        self._ended.fetch()
        numbers = np.array([episode.number for episode in episodes], np.int64)
        self.state = SteppedState(environment, current, step, numbers)
        self._write(observation, current)
        return np.zeros(len(episodes), np.bool_)  # pure functions: nothing can fail here that did not before

    def condemn(self, row: int, episode: int, what: str) -> None:
        """Never needed: the environments are one program."""

    def failures(self) -> list[Failure]:
        return []

    def episode_metrics(self) -> list[EpisodeMetrics]:
        return self._ended.fetch()

    def show(self, observation: dict[str, PyTree]) -> None:
        """Writes the current observations."""
        self._write(observation, self.state.observation)

    def render(self, row: int) -> np.ndarray:
        state = jax.tree.map(lambda leaf: leaf[row], self.state.environment)
        return np.asarray(self._environment.render(state), np.uint8)  # type: ignore[attr-defined]  # `open` made sure

    def close(self) -> None:
        pass

    def _note(self, metrics: dict[str, np.ndarray], ended: np.ndarray) -> None:
        """Keeps the metrics [n] of the episodes that have just ended."""
        for row in np.flatnonzero(ended).tolist() if metrics else ():
            found = {name: value for name, each in metrics.items() if (value := number(each[row])) is not None}
            self._ended.add(row, int(self.state.episodes[row]), found)

    def _replay(self, row: int, episode: Episode, now: int) -> tuple[PyTree, PyTree]:
        index = self._indices[row : row + 1]
        began = now - _length(episode)
        if began == 0:
            environment, observation = self._programs.reset(self._base, index)
        else:
            environment, observation = self._programs.reset_after(self._base, began - 1, index)
        for step in range(began, now):
            action = self._from_rows({group: rows[step - began] for group, rows in episode.actions.items()})
            environment, observation, _ = self._programs.step(environment, action, self._base, step, index)
        return environment, observation

    def _from_rows(self, rows: dict[str, np.ndarray]) -> PyTree:
        """[n, (agents,) ...] from one array a group with `n * agents` rows."""
        by_group = {
            group: rows[group].reshape(-1, *([spec.agents] if spec.agents > 1 else []), *spec.action.shape)
            for group, spec in self._spec.groups.items()
        }
        return by_group if len(by_group) > 1 else next(iter(by_group.values()))

    def _write(self, rows: dict[str, PyTree], values: PyTree, where: np.ndarray | None = None) -> None:
        """Copies `[n, (agents,) ...]` into rows, all or those of the environments in the mask `where`."""
        groups = self._spec.groups
        by_group = values if len(groups) > 1 else dict.fromkeys(groups, values)
        for group, spec in groups.items():
            agents = spec.agents

            def copy(target: np.ndarray, value: Any, agents: int = agents) -> None:
                value = np.asarray(value).reshape(target.shape)
                if where is None:
                    target[:] = value
                else:
                    chosen = where.repeat(agents)
                    target[chosen] = value[chosen]

            jax.tree.map(copy, rows[group], by_group[group])


def _length(episode: Episode) -> int:
    return len(next(iter(episode.actions.values())))


def _reset(environment: JaxEnvironment, base: Array, indices: Array) -> tuple[PyTree, PyTree]:
    return jax.vmap(reset_of(environment))(reset_keys(base, indices), indices)


def _step(
    environment: JaxEnvironment, state: PyTree, action: PyTree, base: Array, step: Array, indices: Array
) -> tuple[PyTree, PyTree, TimeStep]:
    keys = environment_keys(base, step, indices)
    fresh = jax.vmap(reset_of(environment))(keys[:, 1], indices)
    return jax.vmap(partial(autoreset_step, environment))(state, action, keys[:, 0], fresh)


def _reset_after(environment: JaxEnvironment, base: Array, step: Array, indices: Array) -> tuple[PyTree, PyTree]:
    """The episodes that `autoreset_step` begins where others end at `step`."""
    keys = environment_keys(base, step, indices)
    return jax.vmap(reset_of(environment))(keys[:, 1], indices)
