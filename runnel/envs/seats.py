"""The `learning_seats` setting, for host environments of a symmetric game; shared with `seats_jax`.

`--set env.learning_seats=1` divides the only group of an environment, whose agents are alike, into two: the agents in
the first seats keep the group's name and learn, and the others form the group `opponent`. Players rotate through the
seats from episode to episode, so that a policy learns to play every seat. No JAX is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from runnel.environment import (
    Episode,
    HostEnvironment,
    HostStep,
    HostVector,
)
from runnel.envs.wrappers import HostWrapper, VectorWrapper, copy_rows
from runnel.errors import UserError
from runnel.types import AgentSpec, EnvSpec, PyTree, zeros

SETTING: Final = "learning_seats"
"""The name of the setting, unless an environment has its own setting of that name."""

OPPONENT: Final = "opponent"
"""The group of the agents that do not learn."""


def checked(value: Any) -> int:
    """The number of seats that a setting asks for."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        found = f"text '{value}'" if isinstance(value, str) else repr(value)
        raise UserError(f"env.{SETTING}={value}: found {found}, expected a whole number, 1 or more")
    return int(value)


def seated_spec(spec: EnvSpec, seats: int) -> EnvSpec:
    """The spec of an environment with `seats` seats that learn."""
    wanted = f"opponents, or env.{SETTING}={seats}: {spec.name}"
    if len(spec.groups) != 1:
        names = ", ".join(spec.groups)
        raise UserError(
            f"{wanted} has the groups {names}, expected one group, as in a symmetric game; give groups that do not "
            "learn an algorithm of their own: prey=ppo,predator=RUN_DIR@TAG"
        )
    ((group, agents),) = spec.groups.items()
    if agents.agents <= seats:
        players = "1 player" if agents.agents == 1 else f"{agents.agents} players"
        raise UserError(f"{wanted} has {players}, expected more than seats that learn")
    if group == OPPONENT:
        raise UserError(f"{wanted} calls its group '{OPPONENT}', which is the name of the other seats")

    def part(count: int) -> AgentSpec:
        return dataclasses.replace(agents, agents=count, names=())

    return dataclasses.replace(spec, groups={group: part(seats), OPPONENT: part(agents.agents - seats)})


class SeatedEnvironment(HostWrapper):
    """A host environment in which some seats learn."""

    def __init__(self, environment: HostEnvironment, seats: int):
        super().__init__(environment, seated_spec(environment.spec, seats))
        self.seats = seats

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> SeatedVector:
        return SeatedVector(self.environment.open(indices, seed, render), self.environment.spec, indices, self.seats)


class SeatedVector(VectorWrapper):
    """A vector of which some seats learn. Episode k of environment i begins in seat i + k."""

    def __init__(self, vector: HostVector, spec: EnvSpec, indices: Sequence[int], seats: int):
        """`spec` is that of the vector inside."""
        super().__init__(vector)
        self._seats = seats
        ((self._group, agents),) = spec.groups.items()
        self._players, self._indices = agents.agents, np.asarray(indices, np.int64)
        rows = len(indices) * self._players
        self._observation, self._last = zeros(agents.observation, rows), zeros(agents.observation, rows)
        self._action = np.zeros((rows, *agents.action.shape), agents.action.dtype)
        self._rows = self._seating(np.zeros(len(indices), np.int64))

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._vector.reset({self._group: self._observation})
        self._rows = self._seating(self._vector.episode_numbers())
        self._show(self._observation, observation)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        for group, rows in self._rows.items():
            self._action[rows.ravel()] = action[group]
        reward = np.zeros(len(self._action), out.reward[self._group].dtype)
        self._vector.step(
            {self._group: self._action},
            out._replace(
                observation={self._group: self._observation},
                reward={self._group: reward},
                last_observation={self._group: self._last},
            ),
        )
        ended = out.terminated | out.truncated
        for group, rows in self._rows.items():
            out.reward[group][...] = reward[rows.ravel()]
        if ended.any():
            self._show(self._last, out.last_observation, ended)
            self._rows = self._seating(self._vector.episode_numbers())
        self._show(self._observation, out.observation)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        whole = [self._of_all(episode, int(index)) for episode, index in zip(episodes, self._indices, strict=True)]
        cut = self._vector.restore(whole, {self._group: self._observation})
        self._rows = self._seating(self._vector.episode_numbers())
        self._show(self._observation, observation)
        return cut

    def _order(self, episode: np.ndarray, index: np.ndarray) -> np.ndarray:
        """[..., players] the player in each seat, learning seats first."""
        return (np.arange(self._players) + (episode + index)[..., None]) % self._players

    def _seating(self, episodes: np.ndarray) -> dict[str, np.ndarray]:
        """By group: [n, agents] the rows of the vector inside."""
        rows = np.arange(len(self._indices))[:, None] * self._players + self._order(episodes, self._indices)
        return {self._group: rows[:, : self._seats], OPPONENT: rows[:, self._seats :]}

    def _show(self, source: PyTree, target: dict[str, PyTree], envs: np.ndarray | None = None) -> None:
        """Copies the players' observations, of all environments or of some, to their groups' rows."""
        for group, rows in self._rows.items():
            own = slice(None) if envs is None else envs.repeat(rows.shape[1])
            copy_rows(source, rows.ravel()[own], target[group], own)

    def _of_all(self, episode: Episode, index: int) -> Episode:
        """An episode with the actions of all players, as the vector inside knows it."""
        order = self._order(np.asarray(episode.number), np.asarray(index))
        seats = {self._group: order[: self._seats], OPPONENT: order[self._seats :]}
        length = len(episode.actions[self._group])
        actions = np.zeros((length, self._players, *self._action.shape[1:]), self._action.dtype)
        for group, players in seats.items():
            actions[:, players] = episode.actions[group].reshape(length, len(players), *self._action.shape[1:])
        return Episode(episode.number, {self._group: actions})
