"""Rules, observations, measures and settings of hide-and-seek."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hide_scenes import IDLE, action, game, scene

from hide_and_seek import HideAndSeek, features, physics, rooms, senses
from hide_and_seek.world import SEEKERS
from runnel.environment import METRIC_NAME, is_traceable
from runnel.envs import make
from runnel.errors import UserError
from runnel.types import space_map

KEY = jax.random.key(0)
SMALL = dict(hiders=1, seekers=1, boxes=1)


def moves(environment, seed, steps):
    drawn = np.random.default_rng(seed).integers(0, [11, 11, 11, 2, 2], (steps, environment.agents, 5))
    return jnp.asarray(drawn.astype(np.int32))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, np.dtype(x.dtype)), tree)


@pytest.mark.parametrize("name", ["quadrant", "full"])
def test_games_are_of_the_size_that_is_documented(name):
    environment = make(f"hide:{name}")
    assert is_traceable(environment)
    assert environment.spec.max_episode_steps == environment.horizon
    assert (environment.horizon, environment.preparation) == {"quadrant": (80, 32), "full": (240, 96)}[name]
    (group,) = environment.spec.groups.values()
    assert group.agents == {"quadrant": 4, "full": 6}[name]
    assert group.action.sizes == (11, 11, 11, 2, 2)
    states = [game(name)[1](jax.random.key(seed))[0] for seed in range(40)]
    team = np.asarray(environment.team)
    counts = np.array([
        [(state.world.agents.exists & (team == 0)).sum(), (state.world.agents.exists & (team == 1)).sum(),
         (state.world.blocks.exists & ~state.world.blocks.is_ramp).sum(),
         (state.world.blocks.exists & state.world.blocks.is_ramp).sum(),
         (state.world.blocks.exists & (state.world.blocks.half[:, 0] > 0.5)).sum()] for state in states
    ])  # fmt: skip
    least, most = {
        "quadrant": ([2, 1, 1, 1, 0], [2, 2, 2, 1, 0]),
        "full": ([1, 1, 3, 2, 3], [3, 3, 9, 2, 9]),
    }[name]
    assert (counts.min(0) >= least).all()
    assert (counts.max(0) <= most).all()
    assert (counts.max(0) > counts.min(0)).tolist() == [high > low for low, high in zip(least, most, strict=True)]
    walled = {bool(state.world.walled) for state in states}
    assert walled == ({True} if name == "quadrant" else {True, False})
    assert {int(state.world.walls.exists.sum()) for state in states} == ({4} if name == "quadrant" else {0, 2, 4, 6})


@pytest.mark.parametrize("settings", [{}, {"state": True}, {"groups": "kind"}, {"groups": "kind", "seekers": 1}])
def test_observations_are_as_the_spec_says(settings):
    environment = make("hide:quadrant", **settings)
    _, observation = jax.eval_shape(environment.reset, KEY)
    groups = environment.spec.groups
    if settings.get("groups") == "kind":
        assert list(groups) == ["hider", "seeker"]
    else:
        assert list(groups) == ["player"]
        observation = {"player": observation}
    for name, spec in groups.items():
        leading = () if spec.agents == 1 else (spec.agents,)
        expected = space_map(lambda leaf, leading=leading: ((*leading, *leaf.shape), leaf.dtype), spec.observation)
        assert jax.tree.leaves(shapes(observation[name])) == jax.tree.leaves(expected)
        assert len(spec.names) == spec.agents
        assert ("state" in spec.observation) == settings.get("state", False)


def test_features_are_those_that_are_named():
    observation = game("quadrant")[1](KEY)[1]["observation"]
    assert observation["self"].shape[-1] == len(features.OWN)
    assert observation["agents"].shape[-1] == len(features.OF_AGENTS)
    assert observation["boxes"].shape[-1] == observation["ramps"].shape[-1] == len(features.OF_BLOCKS)


def test_an_episode_repeats_and_vmap_changes_nothing():
    environment, reset, _, step = game("quadrant")
    keys, actions = jax.random.split(jax.random.key(1), 3), moves(environment, 0, 40)

    def play(key):
        state, _ = environment.reset(key)
        return jax.lax.scan(lambda state, move: environment.step(state, move, key), state, actions)[1]

    together = jax.jit(jax.vmap(play))(keys)
    again = jax.jit(jax.vmap(play))(keys)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (together, again)), strict=True))
    for number, key in enumerate(keys):
        state, first = reset(key)
        assert shapes(first) == shapes(jax.tree.map(lambda x, n=number: x[n, 0], together.observation))
        for at in range(8):  # later, last bits that differ have grown
            state, timestep = step(state, actions[at], key)
            expected = jax.tree.map(lambda x, at=at, n=number: x[n, at], together)
            for one, other in zip(jax.tree.leaves(timestep), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-4)


def test_types_do_not_depend_on_the_precision_of_the_algorithm():
    environment = game("quadrant")[0]
    actions = jnp.stack([IDLE] * environment.agents)
    expected = None
    for double in (False, True):
        with jax.enable_x64(double):
            state, observation = jax.eval_shape(environment.reset, KEY)
            after, timestep = jax.eval_shape(environment.step, state, actions, KEY)
            found = shapes((state, observation, after, timestep))
        assert expected in (None, found)
        expected = found
    assert shapes(state) == shapes(after)


def test_rewards_are_zero_sum_and_none_in_the_preparation():
    environment, _, begin, step = game(**SMALL)
    for looks, expected in ((np.pi, 1.0), (0.0, -1.0)):
        state, observation = begin(scene(environment, [(4.0, 3.0, 0.0), (2.0, 3.0, looks)]))
        assert observation["active"].tolist() == [True, False]
        for number in range(environment.horizon):
            state, timestep = step(state, jnp.stack([IDLE, IDLE]), KEY)
            value = 0.0 if number < environment.preparation else expected
            assert timestep.reward.tolist() == [value, -value]
            assert bool(timestep.truncated) == (number == environment.horizon - 1)
            assert not timestep.terminated
        assert timestep.observation["active"].all()
        assert timestep.metrics["seen"] == (expected < 0)
        assert timestep.metrics["hider_return"] == expected * 48


def test_seekers_cannot_act_in_the_preparation():
    environment, _, begin, step = game(**SMALL)
    first, _ = begin(scene(environment, [(4.5, 5.0, 0.0), (2.0, 2.0, 0.0)], [(2.5, 2.0, 0.0)]))
    everything = action((0, 1), turn=1, grab=True)
    state, preparing = first, environment.preparation
    for number in range(preparing + 1):
        state, _ = step(state, jnp.stack([everything, everything]), KEY)
        moved = [not np.array_equal(state.world.agents.position[i], first.world.agents.position[i]) for i in (0, 1)]
        assert moved == [True, number >= preparing]
        assert (state.world.agents.held[1] == 0) == (number >= preparing)


def test_who_leaves_the_area_is_punished():
    environment, _, begin, step = game(**SMALL)
    state, _ = begin(scene(environment, [(-6.3, 3.0, 0.0), (2.0, 3.0, 0.0)], walled=False))
    _, timestep = step(state, jnp.stack([IDLE, IDLE]), KEY)
    assert timestep.reward.tolist() == [-10.0, 0.0]


def test_what_is_not_there_is_seen_by_no_agent_and_sees_nothing():
    environment, _, begin, step = game("quadrant")
    world = scene(environment, [(1.0, 1.0, 0.0), None, (2.0, 1.0, np.pi), None], [None, None, (3.0, 1.0, 0.0)])
    state, first = begin(world)
    actions = jnp.stack([IDLE] * environment.agents)
    for _ in range(environment.preparation + 1):
        state, timestep = step(state, actions, KEY)
    assert first["active"].tolist() == [True, False, False, False]
    assert timestep.observation["active"].tolist() == [True, False, True, False]
    assert timestep.reward.tolist() == [-1.0, 0.0, 1.0, 0.0]
    seen = timestep.observation["observation"]
    for part in ("self", "lidar", "agents", "boxes", "ramps"):
        assert not np.asarray(seen[part])[[1, 3]].any()
    assert seen["agents_mask"][0].tolist() == [False, True, False]  # the first seeker alone
    assert not seen["boxes_mask"].any()
    assert seen["ramps_mask"][:, 0].tolist() == [True, False, False, False]
    hidden = np.asarray(seen["agents"])[~np.asarray(seen["agents_mask"])]
    assert not hidden.any()


def test_entities_are_in_the_viewers_frame():
    environment, _, begin, _ = game(**SMALL)
    # The viewer looks up; the box is ahead of it, to the left.
    _, observation = begin(scene(environment, [(3.0, 1.0, np.pi / 2), None], [(2.5, 3.0, np.pi / 2)]))
    box = dict(zip(features.OF_BLOCKS, np.asarray(observation["observation"]["boxes"][0, 0]), strict=True))
    assert (box["x"], box["y"]) == pytest.approx((2 / 3, 0.5 / 3), abs=1e-5)
    assert (box["cos"], box["sin"]) == pytest.approx((1, 0), abs=1e-5)
    assert (box["own_lock"], box["held"]) == (0, 0)


def test_the_view_is_a_cone_that_blocks_and_walls_stop():
    environment, _, begin, _ = game(**SMALL)

    def sees(other, blocks=(), walls=()):
        return bool(begin(scene(environment, [(3.0, 3.0, 0.0), other], blocks, walls))[0].sees[0, 1])

    for degrees, seen in ((0, True), (66, True), (69, False), (180, False), (-66, True), (-69, False)):
        place = (3 + 2 * np.cos(np.deg2rad(degrees)), 3 + 2 * np.sin(np.deg2rad(degrees)), 0.0)
        assert sees(place) == seen
    assert not sees((5.0, 3.0, 0.0), blocks=[(4.0, 3.0, 0.3)])
    assert not sees((5.0, 3.0, 0.0), walls=[(4.0, 3.0, 0.06, 0.5)])
    assert sees((5.0, 3.0, 0.0), walls=[(4.0, 4.5, 0.06, 0.5)])


def test_lidar_measures_distances_around():
    environment, _, begin, _ = game(**SMALL)
    _, observation = begin(scene(environment, [(3.0, 3.0, 0.0), None], [(5.0, 3.0, 0.0)], [(3.0, 1.0, 1.0, 0.06)]))
    rays = np.asarray(observation["observation"]["lidar"][0]) * senses.LIDAR_RANGE
    assert rays.shape == (30,)
    assert rays[0] == pytest.approx(2 - 0.3, abs=1e-4)  # the box straight ahead
    assert rays[15] == pytest.approx(3, abs=1e-4)  # the side of the floor behind
    assert rays[[22, 23]].max() < 2.1  # the wall to the right


def test_measures_are_those_of_an_episode():
    environment, _, begin, step = game(**SMALL)
    world = scene(environment, [(1.0, 3.0, 0.0), (5.5, 0.5, np.pi / 4)], [(1.6, 3.0, 0.0), (5.0, 5.0, 0.0)])
    state, _ = begin(world)
    for number in range(environment.horizon):
        own = action((1, 0)) if number < 20 or 40 <= number < 50 else action(lock=True)
        if number >= 60:
            own = action(lock=False)
        state, timestep = step(state, jnp.stack([own, IDLE]), KEY)
        if number == environment.preparation - 1:
            moved = float(jnp.linalg.norm(state.world.blocks.position[0] - world.blocks.position[0]))
    measures = {name: float(value) for name, value in timestep.metrics.items()}
    assert measures["max_box_move_prep"] == pytest.approx(moved, abs=1e-5)
    assert measures["num_box_lock_prep"] == 1
    assert measures["num_box_lock"] == 0  # freed at step 60
    assert measures["max_ramp_move"] == measures["max_ramp_move_prep"] == 0
    assert measures["num_ramp_lock"] == measures["num_ramp_lock_prep"] == 0
    assert 0 <= measures["enclosure"] <= 1
    assert all(METRIC_NAME.fullmatch(name) for name in measures)


def test_enclosure_grows_with_walls_around_a_hider():
    environment, _, begin, step = game(horizon=2, preparation=0, **SMALL)

    def enclosure(walls):
        state, _ = begin(scene(environment, [(3.0, 3.0, 0.0), (1.0, 1.0, 0.0)], (), walls))
        return float(step(state, jnp.stack([IDLE, IDLE]), KEY)[1].metrics["enclosure"])

    free = enclosure([])
    half = enclosure([(2.0, 3.0, 0.06, 1.0)])
    shut = enclosure([(2.0, 3.0, 0.06, 1.1), (4.0, 3.0, 0.06, 1.1), (3.0, 2.0, 1.1, 0.06), (3.0, 4.0, 1.1, 0.06)])
    assert free < 0.1 < half < shut
    assert shut == pytest.approx(1 - 1.88**2 / 36, abs=0.03)


@pytest.mark.parametrize("name", ["quadrant", "full"])
def test_bodies_begin_apart_and_in_their_rooms(name):
    environment, reset, _, _ = game(name)
    for seed in range(40):
        world = reset(jax.random.key(100 + seed))[0].world
        assert float(physics.overlaps(world).max()) == 0
        if name == "quadrant":
            team, there = np.asarray(environment.team), np.asarray(world.agents.exists)
            in_room = np.asarray((world.agents.position[:, 0] > 3) & (world.agents.position[:, 1] < 3))
            assert in_room[there & (team != SEEKERS)].all()
            assert not in_room[there & (team == SEEKERS)].any()
        else:
            assert ((world.agents.position > 0) & (world.agents.position < rooms.FLOOR)).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"groups": "each"}, "groups is 'each'; expected one or kind"),
        ({"hiders": 0}, "hiders is 0; expected a whole number from 1 to 6"),
        ({"boxes": 2.5}, "boxes is 2.5; expected a whole number from 1 to 12"),
        ({"horizon": 10}, "preparation is 32 and horizon 10; expected a preparation shorter"),
        ({"preparation": -1}, "preparation is -1; expected a whole number of 0 or more"),
    ],
)
def test_bad_settings_are_explained(settings, words):
    with pytest.raises(UserError, match=words):
        make("hide:quadrant", **settings)


def test_an_unknown_game_is_explained():
    with pytest.raises(UserError, match=r"there is no game 'hide:quadrat'.*quadrant"):
        make("hide:quadrat")
    assert HideAndSeek("full").spec.name == "hide:full"
