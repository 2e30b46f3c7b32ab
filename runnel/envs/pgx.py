"""Board and card games of pgx (2.6), in JAX, as single environments that only the runtime resets.

A game of several players is one group, `player`, of which only the player to move is `active`. Agent k is pgx's player
k for the whole episode. Which player moves first, and so has which colour, is drawn from the key of the reset.

| games | players | chance | an end that the rules of the game do not set |
|---|---|---|---|
| tic_tac_toe, connect_four, othello, hex | 2 | none | never |
| chess, shogi | 2 | none | a draw after 512 moves |
| gardner_chess, animal_shogi | 2 | none | a draw after 256 moves |
| go_9x9, go_19x19 | 2 | none | after 2 moves per point of the board, the points are counted |
| kuhn_poker, leduc_holdem | 2 | the cards, at the reset | never |
| backgammon | 2 | the dice, at a step | never |
| sparrow_mahjong | 3 | the tiles, at the reset | never |
| 2048 | 1 | the tiles, at a step | never |
| minatar-asterix and others of MinAtar | 1 | at a step, sticky actions too | freeway alone, after 2,500 steps |

All of these ends are terminations, as pgx means them: the game has a result. pgx itself truncates nothing; `max_steps`
does. An illegal move, which the mask excludes, ends a game: pgx takes 1 point from the player (3 in backgammon).

Every player sees the game from its own side, also while it waits. In backgammon alone, pgx turns the board for the
player to move only.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.errors import UserError, nearest
from runnel.observations import parted
from runnel.ops.state_dtypes import StateTypes
from runnel.types import DEFAULT_GROUP, AgentSpec, Array, Box, Discrete, EnvSpec, PyTree, Space

GROUPS: Final = ("kind", "each", "one")


class State(NamedTuple):
    """A game in progress."""

    inner: PyTree  # pgx's own, without its observation
    first: PyTree = ()  # [] the player that moved first; of one player, nothing
    score: PyTree = ()  # [] that player's rewards so far


class PgxEnvironment:
    """One game of pgx as pure functions: `PgxEnvironment("connect_four")`."""

    def __init__(self, name: str, /, *, groups: str = "kind", max_steps: int | None = None, **settings: Any):
        """Makes the game of that name with the `settings` of its class in pgx.

        All players share a policy, or each has its own (`groups="each"`). A game is truncated after `max_steps`.
        """
        self._title = f"pgx:{name}"
        if groups not in GROUPS:
            raise UserError(f"{self._title}: groups is '{groups}'; expected kind, each or one")
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise UserError(f"{self._title}: max_steps is {max_steps}; expected a whole number of 1 or more")
        with _scope():
            self._game = _make(self._title, name, settings)
            first = jax.eval_shape(self._game.init, _key())
        self._players, self._limit = int(self._game.num_players), max_steps
        self._masked = not name.startswith("minatar-")  # there, every action is always legal
        self._each = groups == "each" and self._players > 1
        self._names = tuple(f"player_{player}" for player in range(self._players))
        self._blank, self._action = first.observation, Discrete(first.legal_action_mask.shape[0])
        self._types = StateTypes(self._init, self._move, self._action)
        self.spec = EnvSpec(self._title, self._groups(), max_steps)

    def reset(self, key: Array) -> tuple[State, PyTree]:
        inner = self._init(key)
        state = State(self._types.cast(inner))
        if self._players > 1:
            first = jnp.asarray(inner.current_player, jnp.int32)
            state = state._replace(first=first, score=jnp.zeros((), jnp.float32))
        return state, self._by_group(self._observe(inner, jnp.zeros((), jnp.bool)))

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        inner = self._move(state.inner, self._move_of(state.inner, action), key)
        terminated, cut = (jnp.asarray(end, jnp.bool) for end in (inner.terminated, inner.truncated))
        if self._limit is not None:
            cut |= inner._step_count >= self._limit
        rewards = jnp.asarray(inner.rewards, jnp.result_type(float))  # [players]
        stepped, metrics = State(self._types.cast(inner)), ()
        if self._players > 1:
            score = state.score + jnp.asarray(inner.rewards, jnp.float32)[state.first]
            stepped = stepped._replace(first=state.first, score=score)
            metrics = {"first_player": state.first, "first_player_return": score}
        timestep = TimeStep(
            self._by_group(self._observe(inner, terminated | cut)),
            self._by_group(rewards),
            terminated,
            cut & ~terminated,
            metrics,
        )
        return stepped, timestep

    def _init(self, key: Array) -> PyTree:
        with _scope():
            return _arrays(self._game.init(key).replace(observation=()))

    def _move(self, inner: PyTree, action: Array, key: Array) -> PyTree:
        """pgx's own step. Its observation is dropped, and so never computed: each player's view is computed here."""
        with _scope():
            shown = inner.replace(observation=jnp.zeros(self._blank.shape, self._blank.dtype))
            return _arrays(self._game.step(shown, action, key).replace(observation=()))

    def _move_of(self, inner: PyTree, action: PyTree) -> Array:
        """[] the action of the player to move; the others' are ignored."""
        if self._each:
            action = jnp.stack([action[name] for name in self._names])
        chosen = jnp.asarray(action, jnp.int32).reshape(self._players)[inner.current_player]
        return jnp.clip(chosen, 0, self._action.n - 1)

    def _observe(self, inner: PyTree, ended: Array) -> PyTree:
        """[players, ...] each player's observation, mask and turn."""
        players = jnp.arange(self._players, dtype=jnp.int32)
        with _scope():
            seen = jax.vmap(lambda player: self._game.observe(inner, player))(players)
        if self._players == 1:
            return parted(_plain(seen), inner.legal_action_mask[None] if self._masked else None)
        active = (players == inner.current_player) & ~ended
        return parted(_plain(seen), inner.legal_action_mask | ~active[:, None], active)

    def _by_group(self, rows: PyTree) -> PyTree:
        """[players, ...] values, divided by group."""
        if self._each:
            return {name: jax.tree.map(lambda row, k=k: row[k], rows) for k, name in enumerate(self._names)}
        return rows if self._players > 1 else jax.tree.map(lambda row: row[0], rows)

    def _groups(self) -> dict[str, AgentSpec]:
        observation = self._observation_spec()
        if self._players == 1:
            return {DEFAULT_GROUP: AgentSpec(observation, self._action)}
        if self._each:
            return {name: AgentSpec(observation, self._action, 1, (name,)) for name in self._names}
        return {"player": AgentSpec(observation, self._action, self._players, self._names)}

    def _observation_spec(self) -> Space:
        """The space of one player's observation."""

        def observed(key: Array) -> PyTree:
            return self._observe(self._init(key), jnp.zeros((), jnp.bool))

        return jax.tree.map(_space, jax.eval_shape(observed, _key()))


def _make(title: str, name: str, settings: dict[str, Any]) -> Any:
    import pgx

    if name not in pgx.available_envs():
        raise UserError(
            f"no game of pgx is called '{name}'{nearest(name, pgx.available_envs())}", page="add-an-environment#pgx"
        )
    game = pgx.make(name)  # type: ignore[arg-type]
    if not settings:
        return game
    known = list(inspect.signature(type(game)).parameters)
    for setting in settings:
        if setting not in known:
            raise UserError(f"{title} has no setting '{setting}'{nearest(setting, [*known, 'groups', 'max_steps'])}")
    size = {"size": int(sized[1])} if (sized := re.fullmatch(r"go_(\d+)x\d+", name)) else {}
    return type(game)(**{**size, **settings})


def _arrays(state: PyTree) -> PyTree:
    """pgx begins with Python's numbers here and there, which have 64 bits elsewhere if JAX has."""
    return jax.tree.map(jnp.asarray, state)


def _plain(seen: Array) -> Array:
    """An observation in 32 bits or less. Bytes hold counts: unsigned ones would pass for a picture's."""
    dtype = np.dtype(seen.dtype)
    return jnp.asarray(seen, np.int8 if dtype == np.uint8 else dtype)


def _space(leaf: jax.ShapeDtypeStruct) -> Box:
    dtype, shape = np.dtype(leaf.dtype), leaf.shape[1:]
    return Box(shape, dtype, 0, 1) if dtype.kind == "b" else Box(shape, dtype)


def _key() -> PyTree:
    return jax.eval_shape(jax.random.key, 0)


@contextmanager
def _scope() -> Iterator[None]:
    """The context in which pgx is traced: with 32-bit arrays, and without its warnings about waiting players."""
    with warnings.catch_warnings(), jax.enable_x64(False):
        warnings.simplefilter("ignore")
        yield
