"""Hide-and-seek as a JAX environment: rules, rewards and measures.

    state, observation = environment.reset(key)
    state, timestep = environment.step(state, action, key)

Hiders come first among the agents, then seekers. Numbers of agents and blocks are drawn for each episode; arrays have
room for the most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from hide_and_seek import features, physics, rooms, senses
from hide_and_seek.world import (
    BOX,
    CLIMB,
    HIDERS,
    LONG_BOX,
    NOBODY,
    RADIUS,
    RAMP,
    SEEKERS,
    Agents,
    Blocks,
    World,
)
from runnel.environment import TimeStep
from runnel.errors import UserError, nearest
from runnel.observations import parted
from runnel.types import AgentSpec, Array, Box, EnvSpec, MultiDiscrete, PyTree

ACTIONS: Final = MultiDiscrete((11, 11, 11, 2, 2))
"""Force along the agent's own x axis (straight ahead), force along its y axis (to the left), torque, grab and lock. Of
the first three, 5 is none, 0 the most in one direction and 10 the most in the other."""

OUTSIDE: Final = -10.0
"""The reward of an agent outside the area, in every step."""

PAGE: Final = "hide-and-seek"  # of the documentation

Groups = Literal["one", "kind"]


class Range(NamedTuple):
    """The least and the most of something; an episode's number is drawn uniformly."""

    least: int
    most: int


@dataclass(frozen=True)
class Rules:
    """What tells one game from the other."""

    name: str
    layout: Literal["quadrant", "rooms"]
    hiders: Range
    seekers: Range
    boxes: Range
    ramps: Range
    long_boxes: int  # at least so many of the boxes are long, if there are so many
    horizon: int
    preparation: int


QUADRANT: Final = Rules(
    "quadrant", "quadrant", Range(2, 2), Range(1, 2), Range(1, 2), Range(1, 1), long_boxes=0, horizon=80, preparation=32
)
FULL: Final = Rules(
    "full", "rooms", Range(1, 3), Range(1, 3), Range(3, 9), Range(2, 2), long_boxes=3, horizon=240, preparation=96
)
GAMES: Final = {"quadrant": QUADRANT, "full": FULL}


class Tally(NamedTuple):
    """What an episode's measures are made of."""

    start: Array  # [O, 2] where blocks began
    box_move: Array  # [] how far from there the box that moved most was when the preparation ended
    ramp_move: Array  # []
    box_locks: Array  # [] locked boxes at that time
    ramp_locks: Array  # []
    seen: Array  # [] steps after the preparation in which a hider was seen
    enclosure: Array  # [] sum over such steps
    climbed: Array  # [] whether a seeker has been above the floor since
    hider_return: Array  # []


class State(NamedTuple):
    """An episode in progress."""

    world: World
    clock: Array  # [] steps done
    sees: Array  # [A, A + O] of `senses.sights`
    tally: Tally


class HideAndSeek:
    """One game of hide-and-seek, by its name: `HideAndSeek("quadrant", seekers=1)`; see `docs/hide-and-seek.md`.

    Settings that are None are the game's: a number that it draws for each episode, or its own number of steps.
    """

    def __init__(
        self,
        game: str | Rules,
        *,
        groups: Groups = "one",
        state: bool = False,
        hiders: int | None = None,
        seekers: int | None = None,
        boxes: int | None = None,
        ramps: int | None = None,
        horizon: int | None = None,
        preparation: int | None = None,
    ):
        if isinstance(game, str) and game not in GAMES:
            raise UserError(f"there is no game 'hide:{game}'{nearest(game, GAMES)}", page=PAGE)
        self.rules = rules = GAMES[game] if isinstance(game, str) else game
        self._title = f"hide:{rules.name}"
        if groups not in get_args(Groups):
            raise UserError(f"{self._title}: groups is '{groups}'; expected one or kind", page=PAGE)
        self._hiders, self._seekers = self._number("hiders", hiders), self._number("seekers", seekers)
        self._boxes, self._ramps = self._number("boxes", boxes), self._number("ramps", ramps)
        self.horizon = self._steps("horizon", horizon, rules.horizon, 1)
        self.preparation = self._steps("preparation", preparation, rules.preparation, 0)
        if self.preparation >= self.horizon:
            raise UserError(
                f"{self._title}: preparation is {self.preparation} and horizon {self.horizon}; expected a preparation "
                "shorter than the episode",
                page=PAGE,
            )
        self._with_state = state
        self._shared = groups == "one"
        self.agents = self._hiders.most + self._seekers.most
        self.blocks = self._boxes.most + self._ramps.most
        self.team = np.repeat([HIDERS, SEEKERS], [self._hiders.most, self._seekers.most]).astype(np.int32)
        self.spec = EnvSpec(self._title, self._groups(), self.horizon)

    def _number(self, setting: str, given: int | None) -> Range:
        if given is None:
            return getattr(self.rules, setting)
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= LARGEST[setting]:
            raise UserError(
                f"{self._title}: {setting} is {given}; expected a whole number from 1 to {LARGEST[setting]}",
                page=PAGE,
            )
        return Range(given, given)

    def _steps(self, setting: str, given: int | None, default: int, least: int) -> int:
        steps = default if given is None else given
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < least:
            raise UserError(
                f"{self._title}: {setting} is {steps}; expected a whole number of {least} or more", page=PAGE
            )
        return steps

    def reset(self, key: Array) -> tuple[State, PyTree]:
        layout_key, number_key, body_key = jax.random.split(key, 3)
        layout = rooms.quadrant(layout_key) if self.rules.layout == "quadrant" else rooms.random_rooms(layout_key)
        world = _populated(self, layout, number_key, body_key)
        return self.begin(world)

    def begin(self, world: World) -> tuple[State, PyTree]:
        """An episode that begins with a given world, such as one built for a test."""
        zero = jnp.float32(0)
        tally = Tally(world.blocks.position, zero, zero, zero, zero, jnp.int32(0), zero, jnp.zeros((), jnp.bool), zero)
        state = State(world, jnp.int32(0), senses.sights(world), tally)
        return state, self._observed(state)[0]

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        del key  # nothing is drawn after the reset
        moves = action if self._shared else jnp.concatenate([self._of_group(action[name]) for name in TEAMS])
        preparing = state.clock < self.preparation
        frozen = preparing & (jnp.asarray(self.team) == SEEKERS)
        world = self._acted(state, moves, frozen)
        state = state._replace(world=world, clock=state.clock + 1, sees=senses.sights(world))
        observation, distances = self._observed(state)
        reward = self._rewards(state, preparing)
        state = state._replace(tally=self._tallied(state, preparing, reward, distances))
        over = state.clock >= self.horizon
        never = jnp.zeros((), jnp.bool)
        return state, TimeStep(observation, self._by_group(reward), never, over, self._measures(state))

    def render(self, state: State) -> np.ndarray:
        """A picture from above: uint8 [height, width, 3]."""
        from hide_and_seek.drawing import draw

        return draw(self, jax.tree.map(np.asarray, state))

    def _acted(self, state: State, moves: Array, frozen: Array) -> World:
        """The world after a step in which agents did this; `frozen` ones do nothing."""
        world, count = state.world, self.agents
        levels = jnp.clip(moves[:, :3].astype(jnp.float32) / 5 - 1, -1.0, 1.0) * ~frozen[:, None]
        sees = state.sees[:, count:]
        world = world._replace(agents=physics.grabbed(world, (moves[:, 3] == 1) & ~frozen, sees))
        world = world._replace(blocks=physics.locked(world, moves[:, 4] == 1, ~frozen, sees))
        return physics.advance(world, physics.Push(levels[:, :2], levels[:, 2]))

    def _rewards(self, state: State, preparing: Array) -> Array:
        """[A] 1 for the team that succeeds, -1 for the other; less outside the area."""
        agents, team = state.world.agents, jnp.asarray(self.team)
        seen = self._is_seen(state)
        hidden = jnp.where(seen, -1.0, 1.0)
        reward = jnp.where(preparing, 0.0, jnp.where(team == HIDERS, hidden, -hidden))
        low, high = rooms.AREA
        outside = ((agents.position < low) | (agents.position > high)).any(-1)
        return jnp.where(agents.exists, reward + jnp.where(outside, OUTSIDE, 0.0), 0.0).astype(jnp.float32)

    def _is_seen(self, state: State) -> Array:
        """[] whether any seeker sees any hider."""
        most = self._hiders.most
        return state.sees[most : self.agents, :most].any()

    def _tallied(self, state: State, preparing: Array, reward: Array, distances: Array) -> Tally:
        tally, agents = state.tally, state.world.agents
        ends = state.clock == self.preparation
        now = self._moves_and_locks(state)
        before = (tally.box_move, tally.ramp_move, tally.box_locks, tally.ramp_locks)
        kept = [jnp.where(ends, new, old) for new, old in zip(now, before, strict=True)]
        hiding = agents.exists & (jnp.asarray(self.team) == HIDERS)
        hidden_floor = jnp.clip(1 - senses.visible_area(distances) / rooms.FLOOR**2, 0.0, 1.0)
        enclosure = jnp.where(hiding, hidden_floor, 0.0).sum() / jnp.maximum(hiding.sum(), 1)
        climbing = (agents.exists & ~hiding & (agents.height > CLIMB)).any()
        return tally._replace(
            box_move=kept[0],
            ramp_move=kept[1],
            box_locks=kept[2],
            ramp_locks=kept[3],
            seen=tally.seen + (~preparing & self._is_seen(state)),
            enclosure=tally.enclosure + jnp.where(preparing, 0.0, enclosure),
            climbed=tally.climbed | (~preparing & climbing),
            hider_return=tally.hider_return + reward[0],
        )

    def _moves_and_locks(self, state: State) -> tuple[Array, Array, Array, Array]:
        """How far the box and the ramp that moved most are from where they began, and how many of each are locked."""
        blocks = state.world.blocks
        moved = jnp.where(blocks.exists, jnp.linalg.norm(blocks.position - state.tally.start, axis=-1), 0.0)
        is_locked = (blocks.exists & (blocks.lock != NOBODY)).astype(jnp.float32)
        boxes = self._boxes.most
        return moved[:boxes].max(), moved[boxes:].max(), is_locked[:boxes].sum(), is_locked[boxes:].sum()

    def _measures(self, state: State) -> dict[str, Array]:
        """OpenAI's statistics under their names, and our own; see `docs/hide-and-seek.md`."""
        tally = state.tally
        box_move, ramp_move, box_locks, ramp_locks = self._moves_and_locks(state)
        steps = jnp.maximum(1, state.clock - self.preparation)
        return {
            "max_box_move_prep": tally.box_move,
            "max_box_move": box_move,
            "num_box_lock_prep": tally.box_locks,
            "num_box_lock": box_locks,
            "max_ramp_move_prep": tally.ramp_move,
            "max_ramp_move": ramp_move,
            "num_ramp_lock_prep": tally.ramp_locks,
            "num_ramp_lock": ramp_locks,
            "seen": (tally.seen / steps).astype(jnp.float32),
            "enclosure": tally.enclosure / steps,
            "seeker_climbed": tally.climbed,
            "hider_return": tally.hider_return,
        }

    def _observed(self, state: State) -> tuple[PyTree, Array]:
        """Observations by group, and all agents' lidar in metres."""
        left = (1 - state.clock / self.horizon).astype(jnp.float32)
        preparation = jnp.clip((self.preparation - state.clock) / max(1, self.preparation), 0.0, 1.0).astype(
            jnp.float32
        )
        seen, distances = features.entities(state.world, state.sees, preparation, self._boxes.most)
        exists = state.world.agents.exists
        active = exists & ((state.clock >= self.preparation) | (jnp.asarray(self.team) == HIDERS))
        whole = None
        if self._with_state:
            vector = features.whole(state.world, preparation, left, self._is_seen(state))
            whole = jnp.broadcast_to(vector, (self.agents, *vector.shape))
        return self._by_group(parted(seen, active=active, state=whole)), distances

    def _by_group(self, rows: PyTree) -> PyTree:
        """Values of all agents by group, [agents, ...]; a group of one has no axis of agents."""
        if self._shared:
            return rows
        most = self._hiders.most
        hiders, seekers = (jax.tree.map(lambda x, part=part: x[part], rows) for part in (np.s_[:most], np.s_[most:]))
        return {
            name: jax.tree.map(lambda x: x[0], part) if number.most == 1 else part
            for name, part, number in zip(TEAMS, (hiders, seekers), (self._hiders, self._seekers), strict=True)
        }

    def _of_group(self, action: Array) -> Array:
        return action[None] if action.ndim == 1 else action

    def _groups(self) -> dict[str, AgentSpec]:
        one = self._shared
        shapes: Any = jax.eval_shape(self._first_observation)
        names = [f"{team}_{i}" for team, number in zip(TEAMS, (self._hiders, self._seekers), strict=True)
                 for i in range(number.most)]  # fmt: skip
        space = jax.tree.map(_space, shapes if one else None)
        if one:
            return {"player": AgentSpec(space, ACTIONS, self.agents, tuple(names))}
        groups = {}
        for team, number in zip(TEAMS, (self._hiders, self._seekers), strict=True):
            many = number.most > 1
            space = jax.tree.map(lambda leaf, many=many: _space(leaf, many), shapes[team])
            members = tuple(name for name in names if name.startswith(team))
            groups[team] = AgentSpec(space, ACTIONS, number.most, members)
        return groups

    def _first_observation(self) -> PyTree:
        return self.reset(jax.random.key(0))[1]


TEAMS: Final = ("hider", "seeker")
LARGEST: Final = {"hiders": 6, "seekers": 6, "boxes": 12, "ramps": 4}
"""The largest numbers that a setting may ask for: a floor of 36 square metres has no room for more."""


def _populated(game: HideAndSeek, layout: rooms.Layout, number_key: Array, body_key: Array) -> World:
    """Agents and blocks, in places drawn at random."""
    keys = jax.random.split(number_key, 5)
    place_key, turn_key, look_key = jax.random.split(body_key, 3)
    ranges = (game._hiders, game._seekers, game._boxes, game._ramps)
    there = [_up_to(key, each) for key, each in zip(keys, ranges, strict=False)]
    agents_exist, blocks_exist = jnp.concatenate(there[:2]), jnp.concatenate(there[2:])
    boxes = there[2].sum()
    fewest = jnp.minimum(game.rules.long_boxes, boxes)
    most = boxes if game.rules.long_boxes else 0
    long = jnp.arange(game._boxes.most) < jax.random.randint(keys[4], (), fewest, most + 1)
    half = jnp.concatenate([
        jnp.where(long[:, None], jnp.array(LONG_BOX), jnp.array(BOX)),
        jnp.broadcast_to(jnp.array(RAMP), (game._ramps.most, 2)),
    ]).astype(jnp.float32)  # fmt: skip
    turns = jax.random.randint(turn_key, (game.blocks,), 0, 4)
    extent = jnp.where((turns % 2 == 1)[:, None], half[:, ::-1], half)
    extents = jnp.concatenate([extent, jnp.full((game.agents, 2), RADIUS, jnp.float32)])
    exists = jnp.concatenate([blocks_exist, agents_exist])
    places = rooms.placed(place_key, layout, extents, exists, _regions(game))
    still = jnp.zeros(game.blocks, jnp.float32)
    blocks = Blocks(
        places[: game.blocks], jnp.zeros((game.blocks, 2), jnp.float32), turns.astype(jnp.float32) * (np.pi / 2),
        still, half, jnp.arange(game.blocks) >= game._boxes.most, blocks_exist,
        jnp.full(game.blocks, NOBODY, jnp.int32),
    )  # fmt: skip
    count, still = game.agents, jnp.zeros(game.agents, jnp.float32)
    agents = Agents(
        places[game.blocks :], jnp.zeros((count, 2), jnp.float32),
        jax.random.uniform(look_key, (count,), jnp.float32, -np.pi, np.pi), still, still, jnp.asarray(game.team),
        agents_exist, jnp.full(count, NOBODY, jnp.int32), jnp.zeros((count, 2), jnp.float32), still,
    )  # fmt: skip
    return World(agents, blocks, layout.walls, layout.low, layout.high, layout.walled)


def _regions(game: HideAndSeek) -> np.ndarray:
    """Where blocks, then agents may be when an episode begins."""
    if game.rules.layout != "quadrant":
        return np.full(game.blocks + game.agents, rooms.ANYWHERE)
    parts = (game._boxes, rooms.IN_ROOM), (game._ramps, rooms.OUT_OF_ROOM)
    parts += (game._hiders, rooms.IN_ROOM), (game._seekers, rooms.OUT_OF_ROOM)
    return np.repeat([where for _, where in parts], [number.most for number, _ in parts])


def _up_to(key: Array, number: Range) -> Array:
    """[most] which of them exist."""
    return jnp.arange(number.most) < jax.random.randint(key, (), number.least, number.most + 1)


def _space(leaf: jax.ShapeDtypeStruct, grouped: bool = True) -> Box:
    """The space of one agent's part of an observation, given all agents'."""
    shape, dtype = leaf.shape[1:] if grouped else leaf.shape, np.dtype(leaf.dtype)
    return Box(shape, dtype, 0, 1) if dtype.kind == "b" else Box(shape, dtype)
