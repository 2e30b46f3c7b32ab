"""The `learning_seats` setting for JAX environments; the seating is part of the state. See `runnel.envs.seats`."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.environment import JaxEnvironment, TimeStep
from runnel.envs.seats import OPPONENT, seated_spec
from runnel.envs.wrappers import JaxWrapper
from runnel.types import Array, PyTree

SEATS_KEY = 0x5EA7
"""Folded into the key of a reset, so that the environment draws the same numbers as without seats."""


class SeatedState(NamedTuple):
    """An episode in progress."""

    inner: PyTree  # the environment's own
    order: Array  # [players] the player in each seat: those that learn come first


class SeatedJaxEnvironment(JaxWrapper):
    """A JAX environment in which some seats learn."""

    def __init__(self, environment: JaxEnvironment, seats: int):
        super().__init__(environment, seated_spec(environment.spec, seats))
        self.seats = seats
        ((self._group, agents),) = environment.spec.groups.items()
        self._players = agents.agents

    def reset(self, key: Array) -> tuple[SeatedState, PyTree]:
        inner, observation = self.environment.reset(key)
        first = jax.random.randint(jax.random.fold_in(key, SEATS_KEY), (), 0, self._players)
        order = (jnp.arange(self._players) + first) % self._players
        return SeatedState(inner, order), self._by_group(observation, order)

    def step(self, state: SeatedState, action: PyTree, key: Array) -> tuple[SeatedState, TimeStep]:
        seated = [action[group] if self._agents(group) > 1 else action[group][None] for group in self.spec.groups]
        joined = jnp.concatenate(seated)
        actions = jnp.zeros_like(joined).at[state.order].set(joined)
        inner, timestep = self.environment.step(state.inner, actions, key)
        after = timestep._replace(
            observation=self._by_group(timestep.observation, state.order),
            reward=self._by_group(timestep.reward, state.order),
        )
        return state._replace(inner=inner), after

    def _agents(self, group: str) -> int:
        return self.spec.groups[group].agents

    def _by_group(self, value: PyTree, order: Array) -> dict[str, PyTree]:
        """The values of all players, [players, ...], divided by group."""
        seats = {self._group: order[: self.seats], OPPONENT: order[self.seats :]}

        def take(x: Array, players: Array) -> Array:
            return x[players] if len(players) > 1 else x[players[0]]

        return {group: jax.tree.map(lambda x, own=own: take(x, own), value) for group, own in seats.items()}
