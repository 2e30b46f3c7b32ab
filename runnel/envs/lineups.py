"""The `lineups` setting, for host environments of several groups; shared with `lineups_jax`.

`env.lineups=[["row", "column"], ["row", "column-past"], ["row-past", "column"]]` lets several groups of agents share
each role of a game; a role is a group of the environment itself. A line-up names one group for every role, and line-up
`i % 3` plays in environment i. So a group learns from its own games in some environments, while others play its past
policies against the other roles. A group plays one role. No JAX is imported here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from runnel.environment import (
    Episode,
    EpisodeMetrics,
    HostEnvironment,
    HostStep,
    HostVector,
    ended_episodes,
)
from runnel.envs.wrappers import HostWrapper, VectorWrapper, copy_rows
from runnel.errors import UserError
from runnel.types import EnvSpec, PyTree, zeros

SETTING: Final = "lineups"
"""The name of the setting, unless an environment has its own setting of that name."""

MOST: Final = 256
"""Line-ups of an environment."""

Lineups = tuple[tuple[str, ...], ...]
"""The groups that play together, one for each role."""


def checked(value: Any, spec: EnvSpec) -> Lineups:
    """The line-ups that a setting asks for, of an environment whose roles are the groups of `spec`."""
    if len(spec.groups) == 1:
        raise UserError(
            f"env.{SETTING}: {spec.name} has the group {', '.join(spec.groups)}, expected two or more roles"
        )
    expected = f"a list of line-ups, each with a group for {', '.join(spec.groups)}"
    proper = isinstance(value, list | tuple) and 0 < len(value) <= MOST
    for lineup in value if proper else ():
        proper &= isinstance(lineup, list | tuple) and len(lineup) == len(spec.groups)
        proper &= all(isinstance(group, str) and group.strip() and "/" not in group for group in lineup)
    if not proper:
        raise UserError(f"env.{SETTING}: found {str(value)[:80]}, expected {expected}")
    lineups = tuple(tuple(lineup) for lineup in value)
    roles: dict[str, int] = {}
    for lineup in lineups:
        for role, group in enumerate(lineup):
            if roles.setdefault(group, role) != role:
                names = list(spec.groups)
                raise UserError(
                    f"env.{SETTING}: found '{group}' as {names[roles[group]]} and as {names[role]}, expected one role"
                )
    return lineups


def roles_of(spec: EnvSpec, lineups: Lineups) -> dict[str, str]:
    """Maps each group to its role."""
    return {group: role for lineup in lineups for role, group in zip(spec.groups, lineup, strict=True)}


def lined_up_spec(spec: EnvSpec, lineups: Lineups) -> EnvSpec:
    """The spec of an environment with these line-ups."""

    def plays(group: str) -> tuple[bool, ...]:
        pattern = tuple(group in lineup for lineup in lineups)
        return () if all(pattern) else pattern

    groups = {
        group: dataclasses.replace(spec.groups[role], plays=plays(group))
        for group, role in roles_of(spec, lineups).items()
    }
    return dataclasses.replace(spec, groups=groups)


class LinedUpEnvironment(HostWrapper):
    """A host environment whose roles are each shared by several groups."""

    def __init__(self, environment: HostEnvironment, lineups: Any):
        self.lineups = checked(lineups, environment.spec)
        super().__init__(environment, lined_up_spec(environment.spec, self.lineups))

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> LinedUpVector:
        return LinedUpVector(self.environment.open(indices, seed, render), self.environment.spec, indices, self.lineups)


class LinedUpVector(VectorWrapper):
    """A vector with one line-up per environment."""

    def __init__(self, vector: HostVector, spec: EnvSpec, indices: Sequence[int], lineups: Lineups):
        """`spec` is that of the vector inside, whose groups are the roles."""
        super().__init__(vector)
        self._spec, self._role = spec, roles_of(spec, lineups)
        count = len(indices)
        self._plays = {
            group: np.asarray([group in lineups[index % len(lineups)] for index in indices], np.bool_)
            for group in self._role
        }
        self._observation = {role: zeros(agents.observation, count * agents.agents) for role, agents in self._groups()}
        self._last = {role: zeros(agents.observation, count * agents.agents) for role, agents in self._groups()}
        self._action = {
            role: np.zeros((count * agents.agents, *agents.action.shape), agents.action.dtype)
            for role, agents in self._groups()
        }

    def _groups(self) -> Any:
        return self._spec.groups.items()

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._vector.reset(self._observation)
        self._show(self._observation, observation)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        for group, plays in self._plays.items():
            rows = self._rows(group, plays)
            self._action[self._role[group]][rows] = action[group][rows]
        reward = {self._role[group]: own for group, own in out.reward.items()}  # any group's memory serves its role
        self._vector.step(
            self._action, out._replace(observation=self._observation, reward=reward, last_observation=self._last)
        )
        for group, role in self._role.items():
            if out.reward[group] is not reward[role]:
                out.reward[group][...] = reward[role]
        ended = out.terminated | out.truncated
        if ended.any():
            self._show(self._last, out.last_observation, ended)
        self._show(self._observation, out.observation)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        inside = [
            Episode(episode.number, {self._role[g]: episode.actions[g] for g, plays in self._plays.items() if plays[k]})
            for k, episode in enumerate(episodes)
        ]
        cut = self._vector.restore(inside, self._observation)
        self._show(self._observation, observation)
        return cut

    def episode_metrics(self) -> list[EpisodeMetrics]:
        """Metrics of a role belong to the group that played it."""
        return [each._replace(values=self._of_groups(each.row, each.values)) for each in ended_episodes(self._vector)]

    def _of_groups(self, row: int, values: Mapping[str, float]) -> dict[str, float]:
        playing = {role: group for group, role in self._role.items() if self._plays[group][row]}
        named = [(name.rpartition("/"), value) for name, value in values.items()]
        return {f"{playing.get(role, role)}{slash}{name}": value for (role, slash, name), value in named}

    def _rows(self, group: str, envs: np.ndarray) -> np.ndarray:
        """[B] the agents of a group, of those environments [n]."""
        return envs.repeat(self._spec.groups[self._role[group]].agents)

    def _show(self, source: Mapping[str, PyTree], target: dict[str, PyTree], envs: np.ndarray | None = None) -> None:
        """Copies each role's observations, in all environments or in some, to its groups' rows."""
        for group, role in self._role.items():
            rows = slice(None) if envs is None else self._rows(group, envs)
            copy_rows(source[role], rows, target[group], rows)
