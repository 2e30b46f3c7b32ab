"""Physics, in random scenes: nothing overlaps or tunnels, motion dies away, and what is locked stays."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hide_scenes import IDLE, action, game, scene

from hide_and_seek import geometry, physics
from hide_and_seek.world import BOX, NOBODY, RADIUS, SEEKERS, TOLERANCE, TOP_SPEED

KEY = jax.random.key(0)
SIZES = {"quadrant": (12, 80), "full": (4, 80)}
GAMES = ["quadrant", pytest.param("full", marks=pytest.mark.slow)]
SMALL = dict(hiders=1, seekers=1, boxes=1)


@cache
def episodes(name):
    """By step and scene: worlds, and the deepest overlap, of agents that run, turn, grab and lock at random."""
    environment = game(name)[0]
    scenes, steps = SIZES[name]

    def play(key):
        begin_key, act_key = jax.random.split(key)
        state, _ = environment.reset(begin_key)

        def step(carry, key):
            state, moves = carry
            draw_key, ahead_key, change_key = jax.random.split(key, 3)
            drawn = jax.random.randint(draw_key, moves.shape, 0, jnp.array([11, 11, 11, 2, 2]))
            ahead = jax.random.bernoulli(ahead_key, 0.5, moves.shape[:1])
            drawn = drawn.at[:, 0].set(jnp.where(ahead, 10, drawn[:, 0]))
            moves = jnp.where(jax.random.bernoulli(change_key, 0.15, (environment.agents, 1)), drawn, moves)
            state, _ = environment.step(state, moves, key)
            return (state, moves), (state.world, physics.overlaps(state.world).max())

        still = jnp.broadcast_to(jnp.asarray(IDLE), (environment.agents, 5))
        _, (worlds, deepest) = jax.lax.scan(step, (state, still), jax.random.split(act_key, steps))
        return state.world, worlds, jnp.append(deepest, physics.overlaps(state.world).max())

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(5), scenes)))


@pytest.mark.parametrize("name", GAMES)
def test_bodies_do_not_overlap(name):
    _, _, deepest = episodes(name)
    assert deepest.max() < TOLERANCE
    assert deepest.max() > 0  # something was pushed


@pytest.mark.parametrize("name", GAMES)
def test_bodies_are_in_the_world_and_numbers_are_finite(name):
    first, worlds, _ = episodes(name)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(worlds))
    for bodies in (worlds.agents, worlds.blocks):
        inside = (bodies.position > worlds.low[:, :, None]) & (bodies.position < worlds.high[:, :, None])
        assert inside.all(-1)[bodies.exists].all()
    moved = np.linalg.norm(worlds.blocks.position[:, -1] - first.blocks.position, axis=-1)
    assert moved.max() > 0.2


@pytest.mark.parametrize("name", GAMES)
def test_locked_blocks_stay(name):
    _, worlds, _ = episodes(name)
    lock, place, angle = worlds.blocks.lock, worlds.blocks.position, worlds.blocks.angle
    kept = (lock[:, 1:] != NOBODY) & (lock[:, :-1] != NOBODY)
    assert kept.any()
    assert (place[:, 1:][kept] == place[:, :-1][kept]).all()
    assert (angle[:, 1:][kept] == angle[:, :-1][kept]).all()


@pytest.mark.parametrize("name", GAMES)
def test_no_agent_on_the_floor_is_in_or_beyond_a_wall_it_did_not_climb(name):
    """From one step to the next, the centre of an agent on the floor does not cross a wall."""
    _, worlds, _ = episodes(name)
    agents, walls = worlds.agents, worlds.walls
    before, after = agents.position[:, :-1, :, None], agents.position[:, 1:, :, None]
    hit = np.asarray(
        geometry.crossing(before, after, walls.centre[:, 1:, None], jnp.float32(0), walls.half[:, 1:, None]).hit
    )
    low = (agents.height[:, 1:] == 0) & (agents.height[:, :-1] == 0) & agents.exists[:, 1:]
    assert low.sum() > 500
    assert not (hit & walls.exists[:, 1:, None]).any(-1)[low].any()


def drive(world, moves, steps, **settings):
    _, _, begin, step = game(**settings)
    state, _ = begin(world)
    states = [state]
    for _ in range(steps):
        state, _ = step(state, jnp.asarray(moves), KEY)
        states.append(state)
    return states


@pytest.mark.parametrize("lock", [NOBODY, SEEKERS])
def test_an_agent_at_full_speed_does_not_pass_a_thin_wall_or_a_block(lock):
    environment = game(**SMALL)[0]
    world = scene(environment, [(0.5, 4.0, 0.0), None], [(3.0, 4.0, 0.3)], [(4.5, 4.0, 0.06, 2.0)])
    world = world._replace(blocks=world.blocks._replace(lock=jnp.full_like(world.blocks.lock, lock)))
    states = drive(world, np.stack([action((1, 0)), IDLE]), 40, **SMALL)
    fastest = max(float(jnp.linalg.norm(state.world.agents.velocity[0])) for state in states)
    assert 0.9 * TOP_SPEED < fastest <= TOP_SPEED * 1.001
    assert all(float(physics.overlaps(state.world).max()) < TOLERANCE for state in states)
    last = states[-1].world
    assert last.agents.position[0, 0] < 4.5
    box = float(last.blocks.position[0, 0])
    if lock == SEEKERS:
        assert box == 3.0
    else:
        assert box > 3.5  # it was pushed, up to the wall


def test_motion_dies_away():
    environment = game(**SMALL)[0]
    world = scene(environment, [(1.0, 1.0, 0.5), (5.0, 5.0, 2.0)], [(3.0, 3.0, 0.4)])
    agents = world.agents._replace(velocity=jnp.array([[2.0, 1.0], [-1.0, 0.0]]), spin=jnp.array([4.0, -4.0]))
    blocks = world.blocks._replace(velocity=jnp.full_like(world.blocks.velocity, 1.5))
    states = drive(world._replace(agents=agents, blocks=blocks), np.stack([IDLE, IDLE]), 15, **SMALL)

    def energy(state):
        bodies = (state.world.agents, state.world.blocks)
        return sum(float((body.velocity**2).sum() + (body.spin**2).sum()) for body in bodies)

    energies = np.array([energy(state) for state in states])
    assert (np.diff(energies) <= 1e-6).all()
    assert energies[-1] < 1e-3 * energies[0]


def test_a_push_moves_a_block_and_a_heavier_load_is_slower():
    environment = game(**SMALL)[0]
    alone = scene(environment, [(1.0, 3.0, 0.0), None])
    loaded = scene(environment, [(1.0, 3.0, 0.0), None], [(1.0 + RADIUS + BOX[0] + 0.01, 3.0, 0.0)])
    ahead = np.stack([action((1, 0)), IDLE])
    ends = [drive(world, ahead, 12, **SMALL)[-1].world for world in (alone, loaded)]
    free, slow = (float(world.agents.position[0, 0]) for world in ends)
    assert free > slow + 0.3
    assert ends[1].blocks.position[0, 0] > loaded.blocks.position[0, 0] + 0.5


def test_a_held_block_follows_and_turns_with_its_holder():
    environment = game(**SMALL)[0]
    world = scene(environment, [(3.0, 3.0, 0.0), None], [(3.6, 3.0, 0.0)])
    back = drive(world, np.stack([action((-1, 0), grab=True), IDLE]), 12, **SMALL)[-1].world
    assert back.agents.held[0] == 0
    assert back.blocks.position[0, 0] < 3.0
    turned = drive(world, np.stack([action(turn=1, grab=True), IDLE]), 12, **SMALL)[-1].world
    assert abs(float(geometry.wrapped(turned.blocks.angle[0] - turned.agents.angle[0]))) < 0.1
    assert abs(float(turned.agents.angle[0])) > 0.5
    let_go = drive(back, np.stack([IDLE, IDLE]), 1, **SMALL)[-1].world
    assert let_go.agents.held[0] == NOBODY


def test_what_is_out_of_view_or_reach_is_not_grabbed():
    environment = game(**SMALL)[0]
    grabs = np.stack([action(grab=True), IDLE])
    for x, angle, held in ((3.6, 0.0, 0), (3.6, np.pi, NOBODY), (4.2, 0.0, NOBODY)):
        world = scene(environment, [(3.0, 3.0, angle), None], [(x, 3.0, 0.0)])
        assert drive(world, grabs, 1, **SMALL)[-1].world.agents.held[0] == held


def test_a_ramp_is_climbed_from_its_low_end_alone():
    environment = game(**SMALL)[0]
    for start, angle, climbs in ((1.0, 0.0, True), (5.0, np.pi, False)):
        world = scene(environment, [(start, 3.0, angle), None], [None, (3.0, 3.0, 0.0)])
        world = world._replace(blocks=world.blocks._replace(lock=jnp.full_like(world.blocks.lock, SEEKERS)))
        states = drive(world, np.stack([action((1, 0)), IDLE]), 25, **SMALL)
        assert (max(float(state.world.agents.height[0]) for state in states) > 0.3) == climbs


@pytest.mark.parametrize("angle", np.linspace(0, np.pi, 5))
def test_contacts_are_those_of_geometry(angle):
    one, half = jnp.zeros(2), jnp.array([0.5, 0.2])
    contact = geometry.rectangle_contact(one, jnp.float32(0), half, jnp.array([0.9, 0.1]), jnp.float32(angle), half)
    grid = np.stack(np.meshgrid(np.linspace(-0.5, 0.5, 201), np.linspace(-0.2, 0.2, 81)), -1).reshape(-1, 2)
    away = geometry.distance_to_rectangle(jnp.asarray(grid), jnp.array([0.9, 0.1]), jnp.float32(angle), half)
    if abs(float(contact.depth)) > 0.01:
        assert (float(contact.depth) > 0) == bool((np.asarray(away) == 0).any())
    assert np.linalg.norm(contact.normal) == pytest.approx(1, abs=1e-5)
    assert contact.normal[0] > 0 or abs(float(contact.normal[0])) < 1e-6  # towards the second
