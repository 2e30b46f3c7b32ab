"""Pictures show what is going on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hide_scenes import game, scene

from hide_and_seek.drawing import BAR, BOX_COLOUR, SIDE, TEAM_COLOURS, WALL_COLOUR
from hide_and_seek.world import HIDERS

SMALL = dict(hiders=1, seekers=1, boxes=1)


def picture(agents, blocks=(), walls=(), lock=None, **more):
    environment, _, begin, _ = game(**SMALL)
    world = scene(environment, agents, blocks, walls, **more)
    if lock is not None:
        world = world._replace(blocks=world.blocks._replace(lock=jnp.full_like(world.blocks.lock, lock)))
    return environment.render(begin(world)[0]).astype(int)


def near(image, colour):
    """How many pixels have about this colour."""
    return int((np.abs(image - np.array(colour)).max(-1) < 12).sum())


def pixel(image, x, y):
    scale = SIDE / 6.2
    return image[int(SIDE - (y + 0.1) * scale), int((x + 0.1) * scale)]


def test_a_picture_has_a_size_that_does_not_change():
    environment, reset, _, _ = game("full")
    frames = [environment.render(reset(jax.random.key(seed))[0]) for seed in range(4)]
    assert {frame.shape for frame in frames} == {(SIDE + BAR, SIDE, 3)}
    assert {frame.dtype for frame in frames} == {np.dtype(np.uint8)}


def test_everything_that_exists_is_drawn_where_it_is():
    image = picture([(1.0, 5.0, 0.0), None], [(4.0, 2.0, 0.0)], [(3.0, 3.0, 0.06, 1.0)])
    assert pixel(image, 4.0, 2.0) == pytest.approx(BOX_COLOUR, abs=12)
    assert pixel(image, 3.0, 3.0) == pytest.approx(WALL_COLOUR, abs=12)
    assert pixel(image, 0.93, 5.0) == pytest.approx(TEAM_COLOURS[0], abs=12)
    assert not near(image, TEAM_COLOURS[1])


def test_locks_are_in_the_colour_of_the_team():
    free = picture([None, None], [(4.0, 2.0, 0.0)])
    locked = picture([None, None], [(4.0, 2.0, 0.0)], lock=HIDERS)
    assert near(locked, TEAM_COLOURS[HIDERS]) > near(free, TEAM_COLOURS[HIDERS]) + 100


def test_a_hider_that_is_seen_is_pointed_at():
    hidden = picture([(5.0, 3.0, 0.0), (1.0, 3.0, np.pi)])
    seen = picture([(5.0, 3.0, 0.0), (1.0, 3.0, 0.0)])
    assert near(seen[:SIDE], TEAM_COLOURS[1]) > near(hidden[:SIDE], TEAM_COLOURS[1]) + 100


def test_what_has_left_the_floor_is_still_in_the_picture():
    image = picture([(9.0, 3.0, 0.0), None], walled=False)
    assert near(image[:SIDE], TEAM_COLOURS[0]) > 20
