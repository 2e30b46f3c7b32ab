"""What the policy and the critic receive: entities in an agent's own frame with masks, and the whole state.

Numbers are scaled to be about 1. Features of an entity that an agent does not see are 0, and its mask is false.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hide_and_seek import geometry
from hide_and_seek.rooms import FLOOR
from hide_and_seek.senses import LIDAR_RANGE, lidar
from hide_and_seek.world import HEIGHT, HIDERS, NOBODY, SEEKERS, TOP_SPEED, TOP_SPIN, World, holding
from runnel.types import Array

SCALE = FLOOR / 2

OWN = ("x", "y", "velocity_x", "velocity_y", "cos", "sin", "spin", "height", "hider", "preparation", "holds")
"""Of the agent itself: its place on the floor, its velocity in its own frame, the direction it looks in, whether it is
a hider, the share of the preparation that is left, and whether it holds a block."""

OF_AGENTS = ("x", "y", "velocity_x", "velocity_y", "cos", "sin", "height", "hider", "same_team", "holds")
"""Of each other agent, in the viewer's frame: where it is, how it moves relative to the viewer and where it looks."""

OF_BLOCKS = (
    "x", "y", "velocity_x", "velocity_y", "cos", "sin", "spin", "length", "width", "own_lock", "other_lock", "held",
    "held_by_me",
)  # fmt: skip
"""Of each box and ramp, in the viewer's frame; a ramp rises in the direction of (cos, sin)."""


def entities(world: World, sees: Array, preparation: Array, boxes: int) -> tuple[dict[str, Any], Array]:
    """Observations of all agents, [A, ...], and their lidar in metres, [A, RAYS].

    `preparation` is the share that is left; `sees` is that of `senses.sights`.
    """
    agents = world.agents
    count = agents.exists.shape[0]
    others = np.array([[j for j in range(count) if j != i] for i in range(count)], int).reshape(count, count - 1)
    rows = np.arange(count)[:, None]
    distances = lidar(world)
    seen_agents, seen_blocks = sees[:, :count][rows, others], sees[:, count:]
    of_blocks = jnp.where(seen_blocks[..., None], _of_blocks(world), 0.0)
    of_agents = jnp.where(seen_agents[..., None], _of_agents(world)[rows, others], 0.0)
    present = agents.exists[:, None]
    observation = {
        "self": jnp.where(present, _own(world, preparation), 0.0),
        "lidar": jnp.where(present, distances / LIDAR_RANGE, 0.0),
        "agents": of_agents,
        "agents_mask": seen_agents,
        "boxes": of_blocks[:, :boxes],
        "boxes_mask": seen_blocks[:, :boxes],
        "ramps": of_blocks[:, boxes:],
        "ramps_mask": seen_blocks[:, boxes:],
    }
    return observation, distances


def _own(world: World, preparation: Array) -> Array:
    agents = world.agents
    velocity = geometry.unrotated(agents.velocity, agents.angle) / TOP_SPEED
    rest = (
        agents.spin / TOP_SPIN, agents.height / HEIGHT, agents.team == HIDERS,
        preparation * jnp.ones_like(agents.angle), agents.held != NOBODY,
    )  # fmt: skip
    parts = (agents.position / SCALE - 1, velocity, geometry.direction(agents.angle), _columns(*rest))
    return jnp.concatenate(parts, -1)


def _of_agents(world: World) -> Array:
    """[A, A, features] of each agent, seen by each."""
    agents = world.agents
    own_angle = agents.angle[:, None]
    place = geometry.unrotated(agents.position - agents.position[:, None], own_angle) / SCALE
    motion = geometry.unrotated(agents.velocity - agents.velocity[:, None], own_angle) / TOP_SPEED
    shape = place.shape[:-1]
    rest = (
        (agents.height - agents.height[:, None]) / HEIGHT, jnp.broadcast_to(agents.team == HIDERS, shape),
        agents.team == agents.team[:, None], jnp.broadcast_to(agents.held != NOBODY, shape),
    )  # fmt: skip
    return jnp.concatenate([place, motion, geometry.direction(agents.angle - own_angle), _columns(*rest)], -1)


def _of_blocks(world: World) -> Array:
    """[A, O, features] of each block, seen by each agent."""
    agents, blocks = world.agents, world.blocks
    own_angle, team = agents.angle[:, None], agents.team[:, None]
    place = geometry.unrotated(blocks.position - agents.position[:, None], own_angle) / SCALE
    motion = geometry.unrotated(blocks.velocity - agents.velocity[:, None], own_angle) / TOP_SPEED
    holds = holding(agents, blocks.exists.shape[0])
    shape = holds.shape
    rest = (
        jnp.broadcast_to(blocks.spin / TOP_SPIN, shape), jnp.broadcast_to(blocks.half[:, 0], shape),
        jnp.broadcast_to(blocks.half[:, 1], shape), blocks.lock == team, blocks.lock == 1 - team,
        jnp.broadcast_to(holds.any(0), shape), holds,
    )  # fmt: skip
    return jnp.concatenate([place, motion, geometry.direction(blocks.angle - own_angle), _columns(*rest)], -1)


def whole(world: World, preparation: Array, left: Array, seen: Array) -> Array:
    """[s] the whole state in the world's frame, for a critic: of every body whether it exists, and what it is doing."""
    agents, blocks, walls = world.agents, world.blocks, world.walls

    def moving(body: Any) -> list[Array]:
        turned = geometry.direction(body.angle)
        return [body.position / SCALE - 1, body.velocity / TOP_SPEED, turned, body.spin[:, None] / TOP_SPIN]

    holds = holding(agents, blocks.exists.shape[0]).astype(jnp.float32)
    of_agents = jnp.concatenate(
        [*moving(agents), _columns(agents.height / HEIGHT, agents.team == HIDERS, agents.exists), holds], -1
    )
    locks = _columns(blocks.lock == HIDERS, blocks.lock == SEEKERS, blocks.exists)
    of_blocks = jnp.concatenate([*moving(blocks), blocks.half, locks], -1)
    of_walls = jnp.concatenate([walls.centre / SCALE - 1, walls.half / SCALE, walls.exists[:, None]], -1)
    parts = [
        jnp.where(body.exists[:, None], features, 0.0).ravel()
        for body, features in ((agents, of_agents), (blocks, of_blocks), (walls, of_walls))
    ]
    return jnp.concatenate([*parts, _columns(preparation, left, seen, world.walled)]).astype(jnp.float32)


def _columns(*parts: Array) -> Array:
    return jnp.stack([part.astype(jnp.float32) for part in parts], -1)
