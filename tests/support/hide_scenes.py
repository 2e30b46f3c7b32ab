"""Scenes of hide-and-seek that tests build, and agents that follow a script."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from hide_and_seek import HideAndSeek, geometry
from hide_and_seek.world import NOBODY, WALL, Agents, Blocks, Walls, World

IDLE = np.array([5, 5, 5, 0, 0])
GRAB, LOCK = 3, 4


@cache
def game(name="quadrant", **settings):
    """A game and its compiled functions: reset, begin, step."""
    environment = HideAndSeek(name, **settings)
    return environment, jax.jit(environment.reset), jax.jit(environment.begin), jax.jit(environment.step)


def scene(environment, agents, blocks=(), walls=(), walled=True):
    """A world of 6 x 6 metres in which exactly these things are.

    An agent is (x, y, angle), of the game's agents in their order; a block (x, y, angle), of its boxes and ramps in
    their order; None where one is missing. A wall is (x, y, half_x, half_y).
    """
    rows = [*agents, *[None] * (environment.agents - len(agents))]
    places = jnp.array([row or (3.0, 3.0, 0.0) for row in rows], jnp.float32)
    count, none = environment.agents, jnp.zeros(environment.agents, jnp.float32)
    there = jnp.array([row is not None for row in rows])
    bodies = Agents(
        places[:, :2], jnp.zeros((count, 2), jnp.float32), places[:, 2], none, none, jnp.asarray(environment.team),
        there, jnp.full(count, NOBODY, jnp.int32), jnp.zeros((count, 2), jnp.float32), none,
    )  # fmt: skip
    state, _ = game_reset(environment)
    given = state.world.blocks
    rows = [*blocks, *[None] * (environment.blocks - len(blocks))]
    places = jnp.array([row or (3.0, 3.0, 0.0) for row in rows], jnp.float32)
    there = jnp.array([row is not None for row in rows])
    things = Blocks(
        places[:, :2], given.velocity, places[:, 2], given.spin, given.half, given.is_ramp, there, given.lock
    )
    count = state.world.walls.exists.shape[0]
    assert len(walls) <= count
    rows = jnp.array([*walls, *[(0.0, 0.0, WALL, WALL)] * (count - len(walls))], jnp.float32)
    solid = Walls(rows[:, :2], rows[:, 2:], jnp.arange(count) < len(walls))
    low, high = (jnp.full(2, limit, jnp.float32) for limit in ((0.0, 6.0) if walled else (-7.0, 13.0)))
    return World(bodies, things, solid, low, high, jnp.bool_(walled))


_RESETS = {}


def game_reset(environment):
    if environment not in _RESETS:
        _RESETS[environment] = jax.jit(environment.reset)(jax.random.key(0))
    return _RESETS[environment]


def action(force=(0.0, 0.0), turn=0.0, grab=False, lock=False):
    """One agent's action: force and torque from -1 to 1 in its own frame."""
    levels = np.round(5 + 5 * np.clip([*force, turn], -1, 1)).astype(int)
    return np.array([*levels, int(grab), int(lock)])


def towards(state, agent, goal, look=None, grab=False, lock=False):
    """The action that walks to a place, and looks there or at `look`; it stops when it is there."""
    agents = state.world.agents
    position, angle = np.asarray(agents.position[agent]), float(agents.angle[agent])
    path = np.asarray(goal) - position
    direction = path if look is None else np.asarray(look) - position
    askew = float(geometry.wrapped(np.arctan2(direction[1], direction[0]) - angle))
    turn = np.clip(2.0 * askew - 0.3 * float(agents.spin[agent]), -1, 1) if np.linalg.norm(direction) > 0.05 else 0
    wanted = path * min(1.0, 1.5 / max(np.linalg.norm(path), 1e-6))
    local = np.asarray(geometry.unrotated(jnp.asarray(wanted, jnp.float32), jnp.float32(angle)))
    return action(np.clip(local, -1, 1), turn, grab, lock)
