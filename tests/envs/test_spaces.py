"""Spaces of any shape there and back, drawn by hypothesis."""

import jax
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runnel.envs import spaces
from runnel.errors import UserError
from runnel.types import Box, Discrete, MultiDiscrete, zeros

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
dtypes = st.sampled_from([np.float32, np.float64, np.float16, np.uint8, np.int8, np.int32, np.int64, np.bool_])


@st.composite
def boxes(draw):
    dtype = draw(dtypes)
    if dtype is np.bool_:
        return gym.Box(0, 1, draw(shapes), dtype)
    low, high = (0, 200) if dtype is np.uint8 else (-100, 100)
    return gym.Box(low, high, draw(shapes), dtype)


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3)
discretes = st.builds(lambda n, start: gym.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5))
multi_discretes = sizes.flatmap(
    lambda n: st.lists(st.integers(-5, 5), min_size=len(n), max_size=len(n)).map(
        lambda start: gym.MultiDiscrete(n, start=start)
    )
)
grids = st.integers(-3, 3).map(lambda s: gym.MultiDiscrete([[2, 3], [4, 5]], start=[[s, 0], [0, s]]))
leaves = st.one_of(boxes(), discretes, multi_discretes, grids, st.integers(1, 5).map(gym.MultiBinary))
trees = st.recursive(
    leaves,
    lambda parts: (
        st.dictionaries(st.sampled_from("zyxab"), parts, max_size=3).map(gym.Dict)
        | st.lists(parts, min_size=1, max_size=3).map(gym.Tuple)
    ),
    max_leaves=6,
)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def back(space, described, rows, row):
    """The value of a row, in the environment's own numbers."""
    match space:
        case gym.Dict():
            return {key: back(space[key], described[key], rows[key], row) for key in space}
        case gym.Tuple():
            return tuple(back(*parts, row) for parts in zip(space, described, rows, strict=True))
        case gym.Discrete():
            return np.int64(rows[row]) + space.start
        case gym.MultiDiscrete():
            return rows[row].astype(np.int64) + space.start
    return rows[row].astype(space.dtype)


@quick
@given(trees, st.integers(0, 2**20))
def test_observations_come_back_as_they_were(space, seed):
    space.seed(seed)
    kept = spaces.observations(space, "drawn")
    values = [space.sample() for _ in range(3)]
    together, one_by_one = zeros(kept.space, 3), zeros(kept.space, 3)
    kept.write(together, values)
    for row, value in enumerate(values):
        kept.write_row(one_by_one, row, value)
        for a, b in zip(
            jax.tree.leaves(back(space, kept.space, together, row)),
            jax.tree.leaves(_plain(value)),
            strict=True,
        ):
            np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, together, one_by_one)


def _plain(value):
    """Dicts in sorted order, as JAX has them."""
    if isinstance(value, dict):
        return {key: _plain(value[key]) for key in sorted(value)}
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


@quick
@given(trees)
def test_arrays_have_types_that_jax_has(space):
    for leaf in jax.tree.leaves(spaces.observations(space, "drawn").space):
        assert np.dtype(leaf.dtype).itemsize <= 4
        if isinstance(leaf, Box):
            assert np.broadcast_shapes(np.shape(leaf.low), np.shape(leaf.high), leaf.shape) == leaf.shape
            assert leaf.low.dtype == leaf.high.dtype == leaf.dtype


@quick
@given(leaves, st.integers(0, 2**20))
def test_every_action_is_one_the_environment_knows(space, seed):
    kept, rng = spaces.actions(space, "drawn"), np.random.default_rng(seed)
    match kept.space:
        case Discrete():
            rows = rng.integers(0, kept.space.n, 5).astype(np.int32)
        case MultiDiscrete():
            rows = rng.integers(0, kept.space.sizes, (5, len(kept.space.sizes))).astype(np.int32)
        case Box():
            rows = rng.normal(scale=300, size=(5, *kept.space.shape)).astype(np.float32)
    before = rows.copy()
    unpacked = list(kept.unpack(rows))
    assert len(unpacked) == 5
    assert all(space.contains(action) for action in unpacked), unpacked
    np.testing.assert_array_equal(rows, before)


def test_all_numbers_of_a_discrete_action_are_reached():
    kept = spaces.actions(gym.Discrete(3, start=-1), "drawn")
    assert kept.unpack(np.arange(3, dtype=np.int32)).tolist() == [-1, 0, 1]


def test_64_bit_integers_that_do_not_fit_are_rounded_and_not_wrapped_round():
    assert spaces.observations(gym.Box(0, 2**31 - 1, (2,), np.int64), "small").space.dtype == np.int32
    kept = spaces.observations(gym.Box(0, 2**40, (2,), np.int64), "large")
    assert kept.space.dtype == np.float32
    rows = zeros(kept.space, 1)
    kept.write_row(rows, 0, np.array([2**40, 1]))
    assert rows.tolist() == [[2.0**40, 1.0]]


def test_bounds_are_kept():
    space = spaces.observations(
        gym.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 1e300]), dtype=np.float64), "half"
    ).space
    np.testing.assert_array_equal(space.low, np.array([-1, -np.inf], np.float32))
    np.testing.assert_array_equal(space.high, np.array([np.inf, np.inf], np.float32))
    assert not space.bounded


@pytest.mark.parametrize(
    "space",
    [
        gym.Text(5),
        gym.Sequence(gym.Discrete(2)),
        gym.Graph(gym.Discrete(2), None),
        gym.OneOf([gym.Discrete(2)]),
    ],
)
def test_spaces_that_are_not_supported_are_named(space):
    kind = type(space).__name__
    with pytest.raises(UserError, match=rf"thing: its observation space has an? {kind}; Runnel knows Box, .*Wrap"):
        spaces.observations(gym.Dict({"a": gym.Discrete(2), "b": gym.Tuple([space])}), "thing")
    with pytest.raises(UserError, match=rf"thing: its action space is an? {kind}; Runnel acts in one Box.*Wrap"):
        spaces.actions(space, "thing")


def test_actions_made_of_parts_are_refused():
    with pytest.raises(UserError, match="its action space is a Dict"):
        spaces.actions(gym.Dict({"a": gym.Discrete(2)}), "thing")


def test_keys_that_are_no_strings_are_refused():
    with pytest.raises(UserError, match="thing: found a key 1 in its observation, expected strings; rename it"):
        spaces.observations(gym.Dict({1: gym.Discrete(2)}), "thing")
