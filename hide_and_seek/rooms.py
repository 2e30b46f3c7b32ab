"""Where walls, doors and bodies are when an episode begins. Every layout has a fixed number of walls.

The floor is a square of `FLOOR` metres. The quadrant game has a room in its corner; the full game has up to three walls
that part the floor into up to four rooms, all connected by doors, and half the time no wall around the floor: then
everything may leave it, up to the limits of the world.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hide_and_seek.world import WALL, Walls
from runnel.types import Array

FLOOR: Final = 6.0
ROOM: Final = 3.0  # the side of the quadrant game's room
DOOR: Final = 0.25  # half the width
AREA: Final = (-6.0, 12.0)  # the full game's: an agent outside of it is punished
FENCE: Final = 1.0  # beyond the area: nothing goes further
OUTER_WALLS: Final = 0.5  # probability
SECOND_DOOR: Final = 0.5  # probability, in the quadrant game
CANDIDATES: Final = 24  # places tried for each body
MARGIN: Final = 0.05  # between bodies

ANYWHERE: Final = 0
IN_ROOM: Final = 1
OUT_OF_ROOM: Final = 2


class Layout(NamedTuple):
    """The walls of an episode, and its limits."""

    walls: Walls
    room: Array  # [2, 2] lower and upper corner of the room that bodies are placed in, or out of
    low: Array  # [2]
    high: Array  # [2]
    walled: Array  # []


def quadrant(key: Array) -> Layout:
    """A room in the lower right corner, with a door in one or in both of its walls."""
    where_key, second_key, which_key = jax.random.split(key, 3)
    doors = jax.random.uniform(where_key, (2,), jnp.float32, 0.6, ROOM - 0.6)
    both = jax.random.bernoulli(second_key, SECOND_DOOR)
    opened = both | (jnp.arange(2) == jax.random.randint(which_key, (), 0, 2))
    left = FLOOR - ROOM
    sides = (
        _with_door(0, left, 0.0, ROOM + WALL, doors[0], opened[0]),
        _with_door(1, ROOM, left - WALL, FLOOR, left + doors[1], opened[1]),
    )
    centre, half = (jnp.concatenate(parts) for parts in zip(*sides, strict=True))
    walls = Walls(centre, half, jnp.ones(4, bool))
    room = jnp.array([[left + WALL, 0.0], [FLOOR, ROOM - WALL]], jnp.float32)
    return Layout(walls, room, jnp.zeros(2, jnp.float32), jnp.full(2, FLOOR, jnp.float32), jnp.bool_(True))


def random_rooms(key: Array) -> Layout:
    """No wall, one across the floor, or one and a second or third that part the halves; each has a door."""
    count_key, where_key, door_key, turn_key, outer_key = jax.random.split(key, 5)
    count = jax.random.randint(count_key, (), 0, 4)
    where = jax.random.uniform(where_key, (3,), jnp.float32)
    across = 2.2 + 1.6 * where[0]
    left, right = 1.8 + 2.4 * where[1], 1.8 + 2.4 * where[2]
    drawn = jax.random.uniform(door_key, (14,), jnp.float32)
    # The first wall's door is not where the others meet it.
    places = jnp.linspace(0.6, FLOOR - 0.6, 12)
    free = (jnp.abs(places - left) > 0.45) & (jnp.abs(places - right) > 0.45)
    door = places[jnp.argmax(jnp.where(free, drawn[:12], -1.0))]
    left_door = 0.6 + (across - 1.2) * drawn[12]
    right_door = across + 0.6 + (FLOOR - across - 1.2) * drawn[13]
    sides = (
        _with_door(0, across, 0.0, FLOOR, door, True),
        _with_door(1, left, 0.0, across, left_door, True),
        _with_door(1, right, across, FLOOR, right_door, True),
    )
    centre, half = (jnp.concatenate(parts) for parts in zip(*sides, strict=True))
    turned = jax.random.bernoulli(turn_key)
    centre, half = (jnp.where(turned, each[:, ::-1], each) for each in (centre, half))
    exists = jnp.repeat(jnp.arange(3) < count, 2, total_repeat_length=6)
    walled = jax.random.bernoulli(outer_key, OUTER_WALLS)
    low = jnp.where(walled, 0.0, AREA[0] - FENCE) * jnp.ones(2, jnp.float32)
    high = jnp.where(walled, FLOOR, AREA[1] + FENCE) * jnp.ones(2, jnp.float32)
    room = jnp.array([[0.0, 0.0], [FLOOR, FLOOR]], jnp.float32)
    return Layout(Walls(centre, half, exists), room, low, high, walled)


def _with_door(
    axis: int, at: Array | float, begin: Array | float, end: Array | float, door: Array, opened: Array | bool
) -> tuple[Array, Array]:
    """[2, 2] centres and halves of a wall's two parts. It runs along the other axis than `axis`, where it is `at`."""
    gap = jnp.where(jnp.asarray(opened), DOOR, 0.0)
    ends = ((begin, door - gap), (door + gap, end))

    def point(along: Array, over: Array | float) -> Array:
        pair = [jnp.asarray(over, jnp.float32), jnp.asarray(along, jnp.float32)]
        return jnp.stack(pair if axis == 0 else pair[::-1])

    centre = jnp.stack([point((first + last) / 2, at) for first, last in ends])  # type: ignore[operator]
    half = jnp.stack([point((last - first) / 2, WALL) for first, last in ends])  # type: ignore[operator]
    return centre, half


def placed(key: Array, layout: Layout, half: Array, exists: Array, region: np.ndarray) -> Array:
    """[E, 2] places of bodies with these half sides along the axes [E, 2], one after the other, apart from each other.

    Of a fixed number of places drawn at random, each takes the first with a margin all around, or, if the floor is
    so full that none has one, that with the most room.
    """
    count = half.shape[0]
    walls = layout.walls

    def step(places: Array, given: tuple[Array, Array, Array, Array]) -> tuple[Array, None]:
        number, key, size, where = given
        in_room = where == IN_ROOM
        low, high = (jnp.where(in_room, corner, edge) for corner, edge in zip(layout.room, (0.0, FLOOR), strict=True))
        least, most = low + size + MARGIN, high - size - MARGIN
        tried = least + (most - least) * jax.random.uniform(key, (CANDIDATES, 2), jnp.float32)

        def apart(centre: Array, other: Array) -> Array:
            return (jnp.abs(tried[:, None] - centre) - size - other).max(-1)  # [CANDIDATES, ...]

        earlier = (jnp.arange(count) < number) & exists
        to_bodies = jnp.where(earlier, apart(places, half), jnp.inf).min(1)
        to_walls = jnp.where(walls.exists, apart(walls.centre, walls.half), jnp.inf).min(1)
        middle, side = layout.room.mean(0), (layout.room[1] - layout.room[0]) / 2
        to_room = jnp.where(where == OUT_OF_ROOM, apart(middle[None], side[None])[:, 0], jnp.inf)
        room = jnp.minimum(jnp.minimum(to_bodies, to_walls), to_room)
        best = tried[jnp.argmax(jnp.minimum(room, MARGIN))]
        return jnp.where(jnp.arange(count)[:, None] == number, best, places), None

    numbers = jnp.arange(count)
    given = (numbers, jax.random.split(key, count), half, jnp.asarray(region))
    places, _ = jax.lax.scan(step, jnp.zeros((count, 2), jnp.float32), given)
    return places
