"""The seats of a game and the policies in them: pure functions of many games side by side.

Values are by group, `[E, n, ...]`: E games, n agents of the group. An *order* `[E, n]` is the agent in each seat. In a
symmetric game, whose players are one group, side A has the first seat and side B the others; who moves first and how
seats are rotated decide the agents. In a game of several groups, each side has whole groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import act_one
from runnel.errors import UserError
from runnel.graph.typecheck import describe, space_type
from runnel.observations import PARTS, is_parted, view
from runnel.policy import Policy
from runnel.types import Act, AgentSpec, Array, Box, Discrete, EnvSpec, MultiDiscrete, PyTree, Space

A, B = 0, 1
"""The sides of a match."""

HASH: Final = 16777619
"""The multiplier of the hash (FNV)."""


class SeatPlayer(NamedTuple):
    """The policy of an agent's seat: a trained one, or one that moves at random."""

    act: Callable[[PyTree, PyTree, PyTree, Array, Array, Array], Act]
    """For one agent: parameters, observation, memory, key, index of the agent, key shared by all agents of the game."""
    params: PyTree
    memory: PyTree  # of one agent, at the start of an episode


class Hand(NamedTuple):
    """Seats of one group that one player acts for: `start` to `stop` in their order."""

    side: int
    group: str
    start: int
    stop: int
    player: SeatPlayer


class Seating:
    """The hands of all sides, which have every seat of every group once."""

    def __init__(self, spec: EnvSpec, hands: Sequence[Hand], rotates: bool):
        """`rotates`: seats are counted from the agent that moves first, as in symmetric games."""
        self.spec, self.hands, self.rotates = spec, tuple(hands), rotates
        self.params = tuple(hand.player.params for hand in hands)

    def order(self, observation: Mapping[str, PyTree], seat: Array) -> tuple[dict[str, Array], Array]:
        """By group: [E, n] the agent in each seat, where side A has seat `seat` [E] counted from the first to move.

        Also whether [E] one agent alone moves first; where all move at once, seats are counted from agent 0.
        """
        found, alone = {}, jnp.zeros(seat.shape, jnp.bool)
        for group, agents in self.spec.groups.items():
            numbers = jnp.broadcast_to(jnp.arange(agents.agents), (len(seat), agents.agents))
            active = view(observation[group]).active
            if self.rotates and active is not None:
                alone = active.sum(1) == 1
                numbers = numbers + jnp.where(alone, active.argmax(1), 0)[:, None]
            found[group] = (numbers + seat[:, None] if self.rotates else numbers) % agents.agents
        return found, alone

    def first_memory(self, games: int) -> tuple[PyTree, ...]:
        """[E, k, ...] the initial memory of each hand."""

        def spread(hand: Hand, x: Array) -> Array:
            return jnp.broadcast_to(x, (games, hand.stop - hand.start, *jnp.shape(x)))

        return tuple(jax.tree.map(partial(spread, hand), hand.player.memory) for hand in self.hands)

    def act(
        self, params: Sequence[PyTree], observation: Mapping[str, PyTree], order: Mapping[str, Array],
        memory: Sequence[PyTree], keys: Array,
    ) -> tuple[dict[str, Array], tuple[PyTree, ...]]:  # fmt: skip
        """The actions of all agents, and each hand's next memory. `keys` [E] are those of one step."""
        games = len(keys)
        actions = {
            group: jnp.zeros((games, agents.agents, *agents.action.shape), agents.action.dtype)
            for group, agents in self.spec.groups.items()
        }
        after = []
        for number, hand in enumerate(self.hands):
            own = order[hand.group][:, hand.start : hand.stop]  # [E, k]

            def one(
                key: Array, index: Array, observation: PyTree, memory: PyTree, number: int = number, hand: Hand = hand
            ) -> Act:
                shared = jax.random.fold_in(key, number)
                acts = hand.player.act(
                    params[number], observation, memory, jax.random.fold_in(shared, index), index, shared
                )
                return Act(jnp.asarray(acts.action, actions[hand.group].dtype), acts.memory)

            seen = jax.tree.map(lambda x, own=own: taken(x, own), observation[hand.group])
            acts = jax.vmap(jax.vmap(one, (None, 0, 0, 0)))(keys, own, seen, memory[number])
            actions[hand.group] = jax.vmap(lambda to, at, value: to.at[at].set(value))(
                actions[hand.group], own, acts.action
            )
            after.append(acts.memory)
        return actions, tuple(after)

    def returns(self, totals: Mapping[str, np.ndarray], order: Mapping[str, np.ndarray]) -> np.ndarray:
        """[E, 2] the mean return of each side's agents."""
        sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for hand in self.hands:
            sides[hand.side].append(
                np.take_along_axis(totals[hand.group], order[hand.group][:, hand.start : hand.stop], 1)
            )
        return np.stack([np.concatenate(side, 1).mean(1) for side in sides], axis=1)

    def hashed(
        self, trace: Array, observation: Mapping[str, PyTree], order: Mapping[str, Array], actions: Mapping[str, Array]
    ) -> Array:
        """[E] a hash of the game so far and of this step: what agents that act see and do, in the order of seats."""
        for group in self.spec.groups:
            active = view(observation[group]).active
            acts = jnp.ones(order[group].shape, jnp.bool) if active is None else taken(active, order[group])
            for values in (*jax.tree.leaves(view(observation[group]).seen), actions[group]):
                trace = (trace ^ _digest(taken(values, order[group]), acts)) * jnp.uint32(HASH)
        return trace


def taken(values: Array, order: Array) -> Array:
    """[E, k, ...] of [E, n, ...]: what the agents of an order [E, k] have."""
    return jax.vmap(lambda x, at: x[at])(values, order)


def _digest(values: Array, counts: Array) -> Array:
    """[E] a hash of [E, n, ...], of those [E, n] that count."""
    real = jnp.issubdtype(values.dtype, jnp.floating)
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32), jnp.uint32) if real else values.astype(jnp.uint32)
    bits = bits.reshape(*bits.shape[:2], -1)
    weights = jnp.arange(1, 2 * bits[0].size, 2, dtype=jnp.uint32) * jnp.uint32(2654435761)
    weighed = (bits + 1) * weights.reshape(bits.shape[1:])
    return jnp.where(counts[..., None], weighed, 0).sum((1, 2), dtype=jnp.uint32)


# Players


def policy_player(policy: Policy, explore: bool) -> SeatPlayer:
    """A policy for agents that it fits. It receives the parts of their observations that it was trained with."""

    def act(
        params: PyTree, observation: PyTree, memory: PyTree, key: Array, index: Array, environment_key: Array
    ) -> Act:
        seen = _as_trained(policy.spec.observation, observation)
        return act_one(policy.acts_with, params, seen, memory, key, explore, index, environment_key)

    # On one device, whichever they were loaded to.
    return SeatPlayer(act, jax.device_put(policy.params, jax.devices()[0]), policy.initial_memory())


def check_fit(policy: Policy, spec: AgentSpec, who: str, where: str) -> None:
    """Refuses a policy whose observations or actions differ from those of the agents of `where`."""
    own, wanted = _plain(policy.spec), _plain(spec)
    if own != wanted:
        raise UserError(
            f"{who} is a policy of {policy.config.trained_on or 'another game'}: found {_words(policy.spec)}, expected "
            f"{_words(spec)}, as {where}",
            page="command-line#versus",
        )


def _plain(spec: AgentSpec) -> Any:
    """The part of a spec that policies for the same game share."""
    leaves, tree = jax.tree.flatten(view(spec.observation).seen)
    return str(tree), [_leaf(leaf) for leaf in leaves], _leaf(spec.action)


def _leaf(space: Any) -> tuple[Any, ...]:
    kind = space.n if isinstance(space, Discrete) else getattr(space, "sizes", None)
    return type(space).__name__, tuple(space.shape), np.dtype(space.dtype), kind


def _words(spec: AgentSpec) -> str:
    action = spec.action
    does = f"{action.n} actions" if isinstance(action, Discrete) else f"actions {describe(space_type(action))}"
    return f"observations {describe(space_type(view(spec.observation).seen))} and {does}"


def _as_trained(space: Space, observation: PyTree) -> PyTree:
    """An observation with the parts that a policy was trained with. Parts that the environment lacks are filled in:
    active, all actions legal, a state of zeros."""
    parts = view(observation)
    if not isinstance(space, dict) or not is_parted(space):
        return parts.seen
    found = {"observation": parts.seen}
    for name in PARTS:
        given = getattr(parts, name)
        if name in space:
            fits = given is not None and jnp.shape(given) == tuple(space[name].shape)
            blank = jnp.full(space[name].shape, name != "state", space[name].dtype)
            found[name] = given if fits else blank
    return found


def random_player(spec: AgentSpec) -> SeatPlayer:
    """Chooses among the legal actions, each with the same probability."""

    def act(
        params: PyTree, observation: PyTree, memory: PyTree, key: Array, index: Array, environment_key: Array
    ) -> Act:
        del params, index, environment_key
        return Act(_random_action(spec, view(observation).action_mask, key), memory)

    return SeatPlayer(act, (), ())


def _random_action(spec: AgentSpec, mask: Array | None, key: Array) -> Array:
    match spec.action:
        case Discrete(n):
            return _random_legal(n, mask, key)
        case MultiDiscrete(sizes):
            ends = np.cumsum(sizes)
            parts = [
                _random_legal(size, None if mask is None else mask[end - size : end], jax.random.fold_in(key, k))
                for k, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
            ]
            return jnp.stack(parts)
        case Box(shape, dtype, low, high) if spec.action.bounded:
            return (jnp.asarray(low) + (jnp.asarray(high) - low) * jax.random.uniform(key, shape)).astype(dtype)
    return jax.random.normal(key, spec.action.shape).astype(spec.action.dtype)


def _random_legal(actions: int, mask: Array | None, key: Array) -> Array:
    drawn = jax.random.uniform(key, (actions,))
    legal = drawn if mask is None else jnp.where(mask.astype(jnp.bool), drawn, -1.0)
    return legal.argmax().astype(jnp.int32)
