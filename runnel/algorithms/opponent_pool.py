"""A group of agents for which several stored policies act, and which does not learn.

The pool has K *places*, each with the parameters of one policy. The place that acts in an episode is drawn when the
episode begins, and kept until it ends. `learn` counts the results of games by place. All this is part of the learner's
state and of the agents' memory, so opponents are the same under every distribution, and checkpoints and resumption
include them.

Policies are exchanged from outside, between two iterations (`runnel.matchmaking`), without a compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from runnel.algorithm import Algorithm, first_state
from runnel.matchmaking import Matchmaker
from runnel.ops import episodes, random
from runnel.ops.grouping import apply_by_place
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory

if TYPE_CHECKING:
    from runnel.graph.flow import Flow

NOBODY = -1
"""The place of an agent whose episode has not begun."""

WIN, DRAW, LOSS = range(3)

UNUSED = ("observation", "action", "last_observation", "first", "memory")
"""The fields of a trajectory that results do not depend on."""


class PoolParams(NamedTuple):
    """The parameters that `act` uses."""

    places: PyTree  # [K, ...] the parameters of each place's policy
    probabilities: Array  # [K] how often each place plays
    serials: Array  # [K] which policy a place has: another number after each exchange


class PoolResults(NamedTuple):
    """Results of the episodes that ended since the last exchange, by place, from the side of the pool's policy."""

    games: Array  # [K, 3] how many were won, drawn and lost
    returns: Array  # [K] the sum of its returns


class PoolState(NamedTuple):
    params: PoolParams
    results: PoolResults
    round: Array  # [] the number of the decision that filled the places


class PoolMemory(NamedTuple):
    """The memory of one agent."""

    policy: PyTree  # of the policy that plays
    place: Array  # [] NOBODY before the first step
    serial: Array  # [] which policy the place had when the episode began


class PoolStep(NamedTuple):
    """The place of a step, which the count of results uses."""

    place: Array
    serial: Array


@dataclass(frozen=True)
class OpponentPool(Algorithm):
    """A group that is played by stored policies of the algorithm `policy`."""

    policy: Algorithm
    matchmaker: Matchmaker
    """Which policies play, and how often."""
    learner: str = ""
    """The group that plays against the pool; none where its policies are those of other runs alone."""
    players: tuple[str, ...] = ()
    """The groups whose policies play here, once they are past; the learner's own where empty."""
    role: str = ""
    """Which role of a game the pool has; empty in a symmetric game, where all have the same."""
    unroll: int = 128
    """Steps of an unroll, where no other group has one: all groups of an environment have the same."""

    learns: ClassVar[bool] = False

    @property
    def places(self) -> int:
        return self.matchmaker.places

    @property
    def actions(self) -> Any:  # type: ignore[override]
        return self.policy.actions

    @property
    def central(self) -> bool:  # type: ignore[override]
        return self.policy.central

    @property
    def max_staleness(self) -> int:  # type: ignore[override]
        return self.policy.max_staleness

    def player(self, group: str) -> str:
        """The group whose policies play in the pool of this group; that itself, where those of other runs do."""
        return (*self.players, self.learner)[0] or group

    def init(self, key: Array, spec: AgentSpec, group: str = "") -> PoolState:
        """Fills all places with one new policy; the first exchange takes place before the first step."""
        one = first_state(self.policy, key, spec, self.player(group)).params
        return self.filled([one] * self.places, [1.0] * self.places, [0] * self.places)

    def filled(
        self, policies: Sequence[PyTree], weights: Sequence[float], serials: Sequence[int], round: int = 0
    ) -> PoolState:
        """The state of a pool whose places have these parameters, and no results yet."""
        share = jnp.asarray(weights, jnp.float32)
        params = PoolParams(
            jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies),
            share / share.sum(),
            jnp.asarray(serials, jnp.int32),
        )
        return PoolState(params, PoolResults(jnp.zeros((self.places, 3)), jnp.zeros(self.places)), jnp.int32(round))

    def initial_memory(self, spec: AgentSpec) -> PoolMemory:
        return PoolMemory(self.policy.initial_memory(spec), jnp.int32(NOBODY), jnp.int32(0))

    def act(
        self, params: PoolParams, observation: PyTree, memory: PoolMemory, key: Array, explore: bool,
        environment_key: Array | None = None,
    ) -> Act:  # fmt: skip
        """Acts with the policy of this episode's place, which all agents of the group share."""
        draw_key = jax.random.fold_in(key if environment_key is None else environment_key, 1)
        bounds = jnp.cumsum(params.probabilities)[:-1]
        drawn = jnp.sum(random.uniform(draw_key) >= bounds, dtype=jnp.int32)
        begins = memory.place == NOBODY
        place = jnp.where(begins, drawn, memory.place)
        serial = jnp.where(begins, params.serials[drawn], memory.serial)
        act = self._as_place(explore)(params.places, place, (observation, memory.policy, key))
        return Act(act.action, PoolMemory(act.memory, place, serial), PoolStep(place, serial))

    def _as_place(self, explore: bool) -> Any:
        """`act` with one place's parameters; of many rows at once, with rows grouped by place."""

        def one(params: PyTree, row: PyTree) -> Act:
            observation, memory, key = row
            act = self.policy.act(params, observation, memory, key, explore)
            return Act(act.action, act.memory)

        @jax.custom_batching.custom_vmap
        def choose(places: PyTree, place: Array, row: PyTree) -> Act:
            return one(jax.tree.map(lambda x: x[place], places), row)

        @choose.def_vmap
        def _(axis_size: int, in_batched: Any, places: PyTree, place: Array, row: PyTree) -> tuple[Act, Any]:
            params_batched, place_batched, row_batched = in_batched
            if any(jax.tree.leaves(params_batched)):
                # Each row has places of its own, as in a program of several members.
                axes = jax.tree.map(lambda own: 0 if own else None, in_batched)
                acts = jax.vmap(lambda *given: choose(*given), in_axes=tuple(axes))(places, place, row)
            else:
                spread = partial(_spread, axis_size)
                rows = jax.tree.map(spread, row, row_batched)
                acts = apply_by_place(one, places, spread(place, place_batched), rows)
            return acts, jax.tree.map(lambda _: True, acts)

        return choose

    def learn(self, state: PoolState, trajectory: Trajectory, key: Array) -> tuple[PoolState, dict[str, Array]]:
        """Counts the episodes that ended."""
        del key
        place, serial = trajectory.extras  # [T, B]
        ended = trajectory.terminated | trajectory.truncated
        # An episode whose place got another policy meanwhile is no result of either.
        counts = ended & (serial == state.params.serials[place])
        running = episodes.Running({"": trajectory.discounted_sum}, jnp.zeros_like(trajectory.index))
        returns = episodes.count(running, {"": trajectory.reward}, ended)[1].returns[""]  # [T, B] 0 where none ended
        won = jnp.where(returns > 0, WIN, jnp.where(returns < 0, LOSS, DRAW))
        weight = counts.astype(jnp.float32)
        results = PoolResults(
            state.results.games.at[place, won].add(weight),
            state.results.returns.at[place].add(weight * returns),
        )
        return state._replace(results=results), {"games": weight.sum()}

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=flow.unroll or self.unroll, discount=1.0, omits=UNUSED)
        flow.learn(self.learn, trajectory)


def _spread(rows: int, value: Array, batched: bool) -> Array:
    return value if batched else jnp.broadcast_to(value, (rows, *value.shape))
