"""What agents see: a cone, lines of sight over obstacles, and distances all around."""

from __future__ import annotations

from typing import Final

import jax.numpy as jnp
import numpy as np

from hide_and_seek import geometry
from hide_and_seek.world import EYES, World, obstacles, surface
from runnel.types import Array

CONE: Final = float(np.deg2rad(135.0))
RAYS: Final = 30
LIDAR_RANGE: Final = 9.0


def sights(world: World) -> Array:
    """[A, A + O] which agents and blocks each agent sees: in its cone, with nothing between that is high enough.

    A line of sight leads from the viewer's eyes to the eyes of an agent, or to that height above the floor at the
    middle of a block. Agents hide nobody. An agent sees the block that it stands on.
    """
    agents, blocks, things = world.agents, world.blocks, obstacles(world)
    count = agents.exists.shape[0]
    targets = jnp.concatenate([agents.position, blocks.position])
    heights = jnp.concatenate([agents.height, jnp.zeros_like(blocks.angle)]) + EYES
    exists = jnp.concatenate([agents.exists, blocks.exists])
    offset = targets - agents.position[:, None]  # [A, A + O, 2]
    ahead = (offset * geometry.direction(agents.angle)[:, None]).sum(-1)
    in_cone = ahead >= jnp.cos(CONE / 2) * geometry.length(offset)

    start = agents.position[:, None, None]
    part = geometry.crossing(start, targets[:, None], things.centre, things.angle, things.half)  # [A, A + O, O + W]
    eyes = (agents.height + EYES)[:, None, None]
    rise = heights[:, None] - eyes
    lowest = eyes + jnp.minimum(rise * part.enters, rise * part.leaves)
    middle = start + offset[:, :, None] * ((part.enters + part.leaves) / 2)[..., None]
    top = surface(geometry.unrotated(middle - things.centre, things.angle), things.half, things.is_ramp)
    itself = jnp.eye(exists.shape[0], things.exists.shape[0], k=-count, dtype=bool)
    blocked = (part.hit & (lowest < top) & things.exists & ~itself).any(-1)

    on_top = geometry.distance_to_rectangle(agents.position[:, None], blocks.position, blocks.angle, blocks.half) == 0
    under = jnp.pad(on_top, ((0, 0), (count, 0)))
    others = ~jnp.eye(count, exists.shape[0], dtype=bool)
    return ((in_cone & ~blocked) | under) & others & exists & agents.exists[:, None]


def lidar(world: World) -> Array:
    """[A, RAYS] the distance to the nearest obstacle that rises to an agent's eyes, counterclockwise from straight
    ahead; at most `LIDAR_RANGE`."""
    agents, things = world.agents, obstacles(world)
    turns = agents.angle[:, None] + jnp.arange(RAYS) * (2 * jnp.pi / RAYS)
    towards = geometry.direction(turns)  # [A, RAYS, 2]
    start = agents.position[:, None]
    end = start + LIDAR_RANGE * towards
    part = geometry.crossing(
        start[:, :, None], end[:, :, None], things.centre, things.angle, things.half
    )  # [A, RAYS, O + W]
    middle = start[:, :, None] + (end - start)[:, :, None] * ((part.enters + part.leaves) / 2)[..., None]
    top = surface(geometry.unrotated(middle - things.centre, things.angle), things.half, things.is_ramp)
    eyes = (agents.height + EYES)[:, None, None]
    hits = part.hit & (top > eyes) & things.exists
    nearest = LIDAR_RANGE * jnp.where(hits, part.enters, 1.0).min(-1)
    safe = jnp.where(jnp.abs(towards) < 1e-9, 1e-9, towards)
    to_side = (jnp.where(safe > 0, world.high, world.low) - start) / safe
    return jnp.minimum(nearest, jnp.where(world.walled, to_side.min(-1), LIDAR_RANGE))


def visible_area(distances: Array) -> Array:
    """[...] the area of the floor that distances all around enclose, as triangles between neighbouring rays."""
    neighbour = jnp.roll(distances, -1, -1)
    return 0.5 * float(np.sin(2 * np.pi / RAYS)) * (distances * neighbour).sum(-1)
