"""Plays games side by side, one episode each, in JAX or on the host: the same games for the same seed.

What an environment draws depends on the game's *deal*, and after the opening also on its repetition, where the
environment is traced: a host environment draws everything from the seed of its episode. What players draw depends on
the deal, the seat and the repetition. Nothing depends on how many games are played side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    cut_with_others,
    is_traceable,
)
from runnel.evaluation.seating import Seating
from runnel.execution.building import fixed_envs
from runnel.ops import random
from runnel.ops.scatters import suited_to_device
from runnel.types import Array, EnvSpec, PyTree, zeros

MOST_IN_JAX: Final = 1024
MOST_ON_HOST: Final = 64
"""The number of games that are played side by side."""

LIMIT_STEPS: Final = 200_000
"""The length after which a game ends by its returns so far: not every environment has a time limit."""

CALL_STEPS: Final = 256
"""Steps of one call: between two calls it can be stopped."""


class Games(NamedTuple):
    """The deal, seat, repetition and opening of each of E games."""

    deal: np.ndarray  # [E] uint32
    seat: np.ndarray  # [E] int32: of side A
    repeat: np.ndarray  # [E] uint32
    opening: Mapping[str, np.ndarray]  # by group: [E, M, n, ...] the first moves of all agents

    def rows(self, chosen: Any) -> Games:
        opening = {group: moves[chosen] for group, moves in self.opening.items()}
        return Games(self.deal[chosen], self.seat[chosen], self.repeat[chosen], opening)

    @property
    def moves(self) -> int:
        """M, the length of the openings."""
        return next((moves.shape[1] for moves in self.opening.values()), 0)


class Played(NamedTuple):
    """The results of E games."""

    returns: np.ndarray  # [E, 2] of both sides; NaN where a game was cut
    trace: np.ndarray  # [E] hashes of what was seen and done
    alone: np.ndarray  # [E] whether one agent alone moved first
    endless: np.ndarray  # [E] whether it was cut at the limit of steps
    notes: tuple[str, ...] = ()


class Drawn(NamedTuple):
    """E random openings."""

    moves: dict[str, np.ndarray]  # by group: [E, M, n, ...]
    over: np.ndarray  # [E] whether the game ended with them
    shown: list[bytes]  # [E] what all players see then, in the order of seats


class MatchTable(Protocol):
    """Plays games of one environment with one seating."""

    most: int
    """The largest number of games that it plays side by side."""
    adjustable: bool
    """Whether it can play fewer."""

    def play(self, games: Games) -> Played: ...

    def draw(self, games: Games, moves: int) -> Drawn:
        """Plays the first moves alone, and records them."""
        ...


def make_table(environment: Environment, seating: Seating, seed: int) -> MatchTable:
    if isinstance(environment, JaxEnvironment) and is_traceable(environment):
        return JaxTable(environment, seating, seed)
    assert isinstance(environment, HostEnvironment)
    return HostTable(environment, seating, seed)


def act_keys(seed: Array, games: Any, step: Array) -> Array:
    """[E] the players' keys at one step."""
    base = random.base_key(seed, random.ACT)

    def one(deal: Array, seat: Array, repeat: Array) -> Array:
        key = base
        for number in (deal, seat, repeat, step):
            key = jax.random.fold_in(key, number)
        return key

    return jax.vmap(one)(games.deal, games.seat, games.repeat)


def _forced(opening: Mapping[str, Array], actions: dict[str, Array], step: Array) -> dict[str, Array]:
    """The actions of a step, or those of the opening."""

    def pick(group: str, chosen: Array) -> Array:
        moves = opening[group]
        now = jax.lax.dynamic_index_in_dim(moves, jnp.minimum(step, moves.shape[1] - 1), 1, keepdims=False)
        return jnp.where(step < moves.shape[1], now.astype(chosen.dtype), chosen)

    return {group: pick(group, chosen) if opening else chosen for group, chosen in actions.items()}


def _bytes_in_order(observation: Mapping[str, PyTree], order: Mapping[str, np.ndarray]) -> list[bytes]:
    """[E] all agents' observations, in the order of seats."""
    parts: list[np.ndarray] = []
    for group, at in order.items():
        rows = np.arange(len(at))[:, None]
        parts += [np.asarray(leaf)[rows, at] for leaf in jax.tree.leaves(observation[group])]
    return [b"".join(part[game].tobytes() for part in parts) for game in range(len(parts[0]))]


# In JAX


class _GamesInProgress(NamedTuple):
    """The state of the games between two steps."""

    state: PyTree  # [E, ...] the environments'
    observation: dict[str, PyTree]  # by group: [E, n, ...]
    order: dict[str, Array]  # by group: [E, n]
    alone: Array  # [E]
    memory: tuple[PyTree, ...]  # by hand: [E, k, ...]
    totals: dict[str, Array]  # by group: [E, n] returns
    over: Array  # [E]
    trace: Array  # [E]
    step: Array  # []


class JaxTable:
    """Plays all games of a call in one program."""

    most, adjustable = MOST_IN_JAX, True

    def __init__(self, environment: JaxEnvironment, seating: Seating, seed: int):
        self.environment, self.seating, self.seed = environment, seating, jnp.uint32(seed)
        self.spec = environment.spec
        self._begin, self._one, self._many = jax.jit(self._first), jax.jit(self._step), jax.jit(self._steps)

    def play(self, games: Games) -> Played:
        now = self._begin(games)
        while True:
            now = self._many(self.seating.params, games, now)
            over, step = jax.device_get((now.over, now.step))
            if over.all() or step >= LIMIT_STEPS:
                break
        totals, order, trace, alone = jax.device_get((now.totals, now.order, now.trace, now.alone))
        return Played(self.seating.returns(totals, order), trace, alone, ~over)

    def draw(self, games: Games, moves: int) -> Drawn:
        now, made = self._begin(games), []
        for _ in range(moves):
            now, actions = self._one(self.seating.params, games, now)
            made.append(jax.device_get(actions))
        order, observation, over = jax.device_get((now.order, now.observation, now.over))
        recorded = {group: np.stack([actions[group] for actions in made], 1) for group in self.spec.groups}
        return Drawn(recorded, over, _bytes_in_order(observation, order))

    def _first(self, games: Any) -> _GamesInProgress:
        base = random.base_key(self.seed, random.ENVIRONMENT)
        state, shown = jax.vmap(self.environment.reset)(random.reset_keys(base, games.deal))
        observation, count = self._by_group(shown), len(games.deal)
        order, alone = self.seating.order(observation, games.seat)
        totals = {group: jnp.zeros((count, spec.agents), jnp.float32) for group, spec in self.spec.groups.items()}
        return _GamesInProgress(
            state, observation, order, alone, self.seating.first_memory(count), totals, jnp.zeros(count, jnp.bool),
            jnp.zeros(count, jnp.uint32), jnp.int32(0),
        )  # fmt: skip

    def _steps(self, params: PyTree, games: Any, now: _GamesInProgress) -> _GamesInProgress:
        end = jnp.minimum(now.step + CALL_STEPS, LIMIT_STEPS)
        return jax.lax.while_loop(
            lambda now: (now.step < end) & ~now.over.all(), lambda now: self._step(params, games, now)[0], now
        )

    def _step(self, params: PyTree, games: Any, now: _GamesInProgress) -> tuple[_GamesInProgress, dict[str, Array]]:
        keys = act_keys(self.seed, games, now.step)
        actions, memory = self.seating.act(params, now.observation, now.order, now.memory, keys)
        actions = _forced(games.opening, actions, now.step)
        trace = self.seating.hashed(now.trace, now.observation, now.order, actions)
        repeat = jnp.where(now.step < games.moves, 0, games.repeat)
        base = random.base_key(self.seed, random.ENVIRONMENT)
        step_keys = jax.vmap(jax.random.fold_in)(random.column_keys(base, now.step + 1, games.deal), repeat)
        state, timestep = jax.vmap(suited_to_device(self.environment.step))(now.state, self._joined(actions), step_keys)
        reward = self._by_group(timestep.reward)
        playing = ~now.over[:, None]
        totals = {
            group: total + jnp.where(playing, reward[group].astype(total.dtype), 0)
            for group, total in now.totals.items()
        }
        return _GamesInProgress(
            state, self._by_group(timestep.observation), now.order, now.alone, memory, totals,
            now.over | timestep.terminated | timestep.truncated, jnp.where(now.over, now.trace, trace), now.step + 1,
        ), actions  # fmt: skip

    def _by_group(self, values: PyTree) -> dict[str, PyTree]:
        """The environments' results by group, with an axis of agents for every group."""
        groups = self.spec.groups
        by_group = values if len(groups) > 1 else dict.fromkeys(groups, values)
        return {
            group: by_group[group] if spec.agents > 1 else jax.tree.map(lambda x: x[:, None], by_group[group])
            for group, spec in groups.items()
        }

    def _joined(self, actions: dict[str, Array]) -> PyTree:
        """Actions as the environments take them."""
        each = {
            group: actions[group] if spec.agents > 1 else actions[group][:, 0]
            for group, spec in self.spec.groups.items()
        }
        return each if len(each) > 1 else next(iter(each.values()))


# On the host


class HostTable:
    """Plays the games of a call in one vector."""

    def __init__(self, environment: HostEnvironment, seating: Seating, seed: int):
        self.environment, self.seating, self.seed = environment, seating, seed
        self.spec = environment.spec
        self.most, self.adjustable = fixed_envs(environment) or MOST_ON_HOST, fixed_envs(environment) is None
        self._order, self._act = jax.jit(seating.order), jax.jit(self._acted)

    def play(self, games: Games) -> Played:
        vector = self.environment.open(games.deal.tolist(), self.seed)
        try:
            return self._play(vector, games)
        finally:
            vector.close()

    def draw(self, games: Games, moves: int) -> Drawn:
        vector, made = self.environment.open(games.deal.tolist(), self.seed), []
        try:
            game = _HostGame(vector, self.spec, len(games.deal))
            order, _ = self._order(game.observation(), games.seat)
            memory, trace = self.seating.first_memory(len(games.deal)), jnp.zeros(len(games.deal), jnp.uint32)
            for step in range(moves):
                actions, memory, trace = self._act(
                    self.seating.params, games, game.observation(), order, memory, trace, jnp.int32(step)
                )
                made.append({group: np.array(chosen) for group, chosen in actions.items()})
                game.step(made[-1])
            recorded = {group: np.stack([actions[group] for actions in made], 1) for group in self.spec.groups}
            return Drawn(recorded, game.over, _bytes_in_order(game.observation(), jax.device_get(order)))
        finally:
            vector.close()

    def _play(self, vector: HostVector, games: Games) -> Played:
        game = _HostGame(vector, self.spec, len(games.deal))
        order, alone = self._order(game.observation(), games.seat)
        memory, trace = self.seating.first_memory(len(games.deal)), jnp.zeros(len(games.deal), jnp.uint32)
        traces = np.zeros(len(games.deal), np.uint32)
        for step in range(LIMIT_STEPS):
            if game.over.all():
                break
            actions, memory, trace = self._act(
                self.seating.params, games, game.observation(), order, memory, trace, jnp.int32(step)
            )
            traces = np.where(game.over, traces, np.asarray(trace))
            game.step({group: np.array(chosen) for group, chosen in actions.items()})
        returns = self.seating.returns(game.totals, jax.device_get(order))
        returns[game.cut] = np.nan
        return Played(returns, traces, np.asarray(alone), ~game.over, tuple(game.notes))

    def _acted(
        self, params: PyTree, games: Any, observation: PyTree, order: PyTree, memory: PyTree, trace: Array, step: Array
    ) -> tuple[dict[str, Array], tuple[PyTree, ...], Array]:
        keys = act_keys(jnp.uint32(self.seed), games, step)
        actions, memory = self.seating.act(params, observation, order, memory, keys)
        actions = _forced(games.opening, actions, step)
        return actions, memory, self.seating.hashed(trace, observation, order, actions)


class _HostGame:
    """The first episode of every environment of a vector; later ones are stepped and ignored."""

    def __init__(self, vector: HostVector, spec: EnvSpec, count: int):
        self.vector, self.spec, self.count = vector, spec, count
        self._out = HostStep(
            observation=self._each(lambda agents: zeros(agents.observation, count * agents.agents)),
            reward=self._each(lambda agents: np.zeros(count * agents.agents, jnp.result_type(float))),
            terminated=np.zeros(count, np.bool_),
            truncated=np.zeros(count, np.bool_),
            last_observation=self._each(lambda agents: zeros(agents.observation, count * agents.agents)),
        )
        self.totals = self._each(lambda agents: np.zeros((count, agents.agents)))
        self.notes: list[str] = []
        vector.reset(self._out.observation)
        self.cut = vector.episode_numbers() > 0  # those that could not begin
        self.over = self.cut.copy()
        self._look()

    def observation(self) -> dict[str, PyTree]:
        """By group: [E, n, ...]."""

        def split(agents: int, x: np.ndarray) -> np.ndarray:
            return x.reshape(self.count, agents, *x.shape[1:])

        return {
            group: jax.tree.map(lambda x, n=agents.agents: split(n, x), self._out.observation[group])
            for group, agents in self.spec.groups.items()
        }

    def step(self, actions: Mapping[str, np.ndarray]) -> None:
        rows = {group: chosen.reshape(-1, *chosen.shape[2:]) for group, chosen in actions.items()}
        self.vector.step(rows, self._out)
        for group, total in self.totals.items():
            total += np.where(self.over[:, None], 0.0, self._out.reward[group].reshape(total.shape))
        self._look()
        self.over |= self.vector.episode_numbers() > 0

    def _look(self) -> None:
        """Records games that a failed environment has ended."""
        failed = self.vector.failures()
        rows = [(failure.row, failure.episode) for failure in failed] + cut_with_others(self.vector)
        for row, episode in rows:
            if episode == 0:
                self.cut[row] = True
        if failed and not self.notes:
            self.notes.append(failed[0].what)

    def _each(self, make: Callable[[Any], Any]) -> dict[str, Any]:
        return {group: make(agents) for group, agents in self.spec.groups.items()}


def padded(games: Games, count: int) -> Games:
    """Pads to `count` games by repeating the last one, so that one compiled program serves all calls."""
    return games.rows(np.minimum(np.arange(count), len(games.deal) - 1))


def joined(parts: Sequence[Played], count: int) -> Played:
    """The first `count` games of several calls."""
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    returns, trace, alone, endless = (
        np.concatenate([getattr(part, name) for part in parts])[:count] for name in Played._fields[:4]
    )
    return Played(returns, trace, alone, endless, notes)
