"""The bodies of a game as arrays of fixed size, and the constants of its physics. Lengths are metres, times seconds.

A is the number of agents, O of blocks (boxes, then ramps), W of walls. Bodies that a game does not have are arrays'
rows whose `exists` is false: they touch nothing and no agent sees them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import jax.numpy as jnp

from runnel.types import Array

STEP_S: Final = 0.1
SUBSTEPS: Final = 4
RADIUS: Final = 0.15  # of an agent
HEIGHT: Final = 0.5  # of boxes, of a ramp's high end, and of walls inside the area
EYES: Final = 0.3  # above the ground that an agent stands on
CLIMB: Final = 0.2  # the highest edge that an agent steps over
FALL_SPEED: Final = 2.0
BOX: Final = (0.3, 0.3)  # half the sides
LONG_BOX: Final = (0.9, 0.1)
RAMP: Final = (0.4, 0.22)  # it rises along its own x axis
WALL: Final = 0.06  # half the thickness
REACH: Final = 0.25  # from an agent's edge, to grab and to lock
FORCE: Final = 16.0  # of an agent, which has mass 1, as has a block
TORQUE: Final = 40.0  # as angular acceleration
AGENT_DAMPING: Final = 6.0  # share of the velocity lost per second, while small
SPIN_DAMPING: Final = 10.0
BLOCK_DAMPING: Final = 8.0
TOP_SPEED: Final = 2.4
TOP_SPIN: Final = 5.0
TOLERANCE: Final = 0.05
"""The deepest overlap of two bodies after a step; `tests/hide_and_seek/test_physics.py` measures it."""

NOBODY: Final = -1
HIDERS: Final = 0
SEEKERS: Final = 1


class Agents(NamedTuple):
    """Agents: circles that look and push in their own direction."""

    position: Array  # [A, 2]
    velocity: Array  # [A, 2]
    angle: Array  # [A]
    spin: Array  # [A]
    height: Array  # [A] of the ground under each
    team: Array  # [A] HIDERS or SEEKERS
    exists: Array  # [A]
    held: Array  # [A] the block that each holds, or NOBODY
    grip: Array  # [A, 2] where the held block's centre is, in the agent's frame
    grip_angle: Array  # [A] the held block's angle, in the agent's frame


class Blocks(NamedTuple):
    """Boxes, then ramps: rectangles that agents move."""

    position: Array  # [O, 2]
    velocity: Array  # [O, 2]
    angle: Array  # [O]
    spin: Array  # [O]
    half: Array  # [O, 2]
    is_ramp: Array  # [O]
    exists: Array  # [O]
    lock: Array  # [O] the team that locked each, or NOBODY


class Walls(NamedTuple):
    """Walls inside the area: rectangles along the axes that do not move."""

    centre: Array  # [W, 2]
    half: Array  # [W, 2]
    exists: Array  # [W]


class World(NamedTuple):
    """Everything that has a place. Nothing leaves the rectangle from `low` to `high`."""

    agents: Agents
    blocks: Blocks
    walls: Walls
    low: Array  # [2]
    high: Array  # [2]
    walled: Array  # [] whether that rectangle's sides are walls, which are tall, or only a limit that no agent sees


class Obstacles(NamedTuple):
    """Blocks, then walls, as rectangles: [O + W]."""

    centre: Array
    angle: Array
    half: Array
    is_ramp: Array
    exists: Array


def obstacles(world: World) -> Obstacles:
    """What agents collide with and cannot look through."""
    blocks, walls = world.blocks, world.walls
    still = jnp.zeros(walls.exists.shape, blocks.angle.dtype)
    return Obstacles(
        jnp.concatenate([blocks.position, walls.centre]),
        jnp.concatenate([blocks.angle, still]),
        jnp.concatenate([blocks.half, walls.half]),
        jnp.concatenate([blocks.is_ramp, still > 0]),
        jnp.concatenate([blocks.exists, walls.exists]),
    )


def surface(local: Array, half: Array, is_ramp: Array) -> Array:
    """The height of an obstacle's surface, at a place in its own frame."""
    share = jnp.clip((local[..., 0] + half[..., 0]) / (2 * half[..., 0]), 0.0, 1.0)
    return jnp.where(is_ramp, HEIGHT * share, HEIGHT)


def holding(agents: Agents, blocks: int) -> Array:
    """[A, O] which block each agent holds."""
    return agents.held[:, None] == jnp.arange(blocks)
