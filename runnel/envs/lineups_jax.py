"""The `lineups` setting for JAX environments; the environment's index selects the line-up. See
`runnel.envs.lineups`."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from runnel.environment import JaxEnvironment, TimeStep
from runnel.envs.lineups import checked, lined_up_spec, roles_of
from runnel.envs.wrappers import JaxWrapper
from runnel.types import Array, PyTree


class LinedUpState(NamedTuple):
    """An episode in progress."""

    inner: PyTree  # the environment's own
    lineup: Array  # [] the number of the one that plays


class LinedUpJaxEnvironment(JaxWrapper):
    """A JAX environment whose roles are each shared by several groups."""

    def __init__(self, environment: JaxEnvironment, lineups: Any):
        self.lineups = checked(lineups, environment.spec)
        super().__init__(environment, lined_up_spec(environment.spec, self.lineups))
        self._role = roles_of(environment.spec, self.lineups)

    def reset(self, key: Array) -> tuple[LinedUpState, PyTree]:
        return self.reset_at(key, jnp.int32(0))

    def reset_at(self, key: Array, index: Array) -> tuple[LinedUpState, PyTree]:
        inner, observation = self.environment.reset(key)
        lineup = jnp.asarray(index % len(self.lineups), jnp.int32)
        return LinedUpState(inner, lineup), self._by_group(observation)

    def step(self, state: LinedUpState, action: PyTree, key: Array) -> tuple[LinedUpState, TimeStep]:
        actions = {
            role: self._played([(group, action[group]) for group in self._role if self._role[group] == role], state)
            for role in self.environment.spec.groups
        }
        inner, timestep = self.environment.step(state.inner, actions, key)
        after = timestep._replace(
            observation=self._by_group(timestep.observation),
            reward=self._by_group(timestep.reward),
            metrics=self._metrics(timestep.metrics, state),
        )
        return state._replace(inner=inner), after

    def _plays(self, group: str, state: LinedUpState) -> Array:
        """[] whether the group plays in this environment."""
        return jnp.asarray(np.asarray([group in lineup for lineup in self.lineups]))[state.lineup]

    def _played(self, given: list[tuple[str, Array]], state: LinedUpState) -> Array:
        """The action of the group that plays, among those that share a role."""
        (_, chosen), *others = given
        for group, action in others:
            chosen = jnp.where(self._plays(group, state), action, chosen)
        return chosen

    def _by_group(self, value: PyTree) -> dict[str, PyTree]:
        """A copy of each role's value for each of its groups."""
        return {group: value[role] for group, role in self._role.items()}

    def _metrics(self, metrics: PyTree, state: LinedUpState) -> PyTree:
        """Metrics of a role belong to the group that plays it; the others get NaN, which is not counted."""
        found = {}
        for name, value in dict(metrics).items():
            if not isinstance(value, dict):
                found[name] = value
                continue
            for group in (group for group, role in self._role.items() if role == name):
                plays = self._plays(group, state)
                found[group] = {own: jnp.where(plays, jnp.asarray(x, float), jnp.nan) for own, x in value.items()}
        return found or metrics
