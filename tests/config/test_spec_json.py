"""Spaces as JSON: what is written is read again, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, strategies

from runnel.config import spec_json
from runnel.errors import UserError
from runnel.types import AgentSpec, Box, Discrete, MultiDiscrete, NativeFormat

SHAPES = strategies.lists(strategies.integers(0, 3), max_size=3).map(tuple)
KINDS = strategies.sampled_from(["float32", "float64", "uint8", "int32", "bool", "float16"])


@strategies.composite
def boxes(draw: Any) -> Box:
    shape, dtype = draw(SHAPES), np.dtype(draw(KINDS))
    if dtype.kind == "b":
        return Box(shape, dtype, 0, 1)
    if dtype.kind in "iu":
        low = draw(strategies.integers(0, 3))
        return Box(shape, dtype, low, low + draw(strategies.integers(0, 100)))
    if draw(strategies.booleans()):
        return Box(shape, dtype)
    low = np.full(shape, draw(strategies.sampled_from([-np.inf, -2.0])), dtype)
    if low.size:
        low.flat[0] = draw(strategies.sampled_from([-np.inf, -1.5, 0.0]))
    return Box(shape, dtype, low, np.full(shape, draw(strategies.sampled_from([1.0, np.inf])), dtype))


LEAVES = (
    boxes()
    | strategies.builds(Discrete, strategies.integers(1, 9), SHAPES)
    | strategies.builds(MultiDiscrete, strategies.lists(strategies.integers(1, 5), min_size=1, max_size=3).map(tuple))
)
SPACES = strategies.recursive(
    LEAVES,
    lambda inner: (
        strategies.dictionaries(strategies.text(max_size=3), inner, min_size=1, max_size=3)
        | strategies.lists(inner, min_size=1, max_size=3).map(tuple)
    ),
    max_leaves=5,
)


def same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one, is_leaf=_is_leaf) == jax.tree.structure(other, is_leaf=_is_leaf)
    pairs = zip(jax.tree.leaves(one, is_leaf=_is_leaf), jax.tree.leaves(other, is_leaf=_is_leaf), strict=True)
    for a, b in pairs:
        assert (type(a), a.shape, np.dtype(a.dtype)) == (type(b), b.shape, np.dtype(b.dtype))
        if isinstance(a, Box):
            np.testing.assert_array_equal(np.broadcast_to(a.low, a.shape), np.broadcast_to(b.low, b.shape))
            np.testing.assert_array_equal(np.broadcast_to(a.high, a.shape), np.broadcast_to(b.high, b.shape))
        else:
            assert a == b


def _is_leaf(space: Any) -> bool:
    return isinstance(space, Box | Discrete | MultiDiscrete)


@given(observation=SPACES, action=LEAVES, names=strategies.lists(strategies.text(max_size=4), max_size=3, unique=True))
def test_what_is_written_is_read_again(observation: Any, action: Any, names: list[str]) -> None:
    spec = AgentSpec(observation, action, agents=max(1, len(names)), names=tuple(names))
    text = json.dumps(spec_json.to_json(spec), allow_nan=False)
    again = spec_json.from_json(json.loads(text), "config.json")
    assert (again.agents, again.names, again.native) == (spec.agents, spec.names, None)
    same(spec.observation, again.observation)
    same(spec.action, again.action)


def test_an_environment_s_own_format_is_read_again() -> None:
    starts = ((("a", 0), np.array([1, 2])), ((), np.array(5)))
    native = NativeFormat((2,), np.dtype(np.int64), np.array([3, 4]), starts)
    spec = AgentSpec(Box((2,)), MultiDiscrete((2, 3)), native=native)
    again = spec_json.from_json(json.loads(json.dumps(spec_json.to_json(spec))), "config.json").native
    assert again is not None
    assert (again.action_shape, again.action_dtype) == ((2,), np.dtype(np.int64))
    np.testing.assert_array_equal(again.action_start, [3, 4])
    for (path, start), (wanted, begins) in zip(again.observation_starts, starts, strict=True):
        assert path == wanted
        np.testing.assert_array_equal(start, begins)


GOOD = spec_json.to_json(AgentSpec({"a": Box((2,)), "b": (Discrete(3),)}, Discrete(2), 2, ("x", "y")))
NATIVE = {"action_shape": [2], "action_dtype": "int64", "action_start": [0, 1], "observation_starts": []}


@pytest.mark.parametrize(
    "change",
    [
        None, 3, [], "spec", {}, {**GOOD, "action": {"kind": "dict", "spaces": {}}}, {**GOOD, "agents": 0},
        {**GOOD, "agents": True}, {**GOOD, "agents": 1 << 60}, {**GOOD, "names": ["x"]}, {**GOOD, "names": [1, 2]},
        {**GOOD, "names": 7}, {**GOOD, "action": {"kind": "os.system"}}, {**GOOD, "action": {"kind": ["box"]}},
        {**GOOD, "action": {"kind": "discrete", "n": 0, "shape": [], "dtype": "int32"}},
        {**GOOD, "action": {"kind": "discrete", "n": 2.5, "shape": [], "dtype": "int32"}},
        {**GOOD, "action": {"kind": "discrete", "n": 2, "shape": [-1], "dtype": "int32"}},
        {**GOOD, "action": {"kind": "discrete", "n": 2, "shape": [], "dtype": "object"}},
        {**GOOD, "action": {"kind": "discrete", "n": 2, "shape": [], "dtype": ["int32"]}},
        {**GOOD, "action": {"kind": "box", "shape": [1 << 30, 1 << 30], "dtype": "float32", "low": None, "high": None}},
        {**GOOD, "action": {"kind": "box", "shape": [1 << 39], "dtype": "float32", "low": None, "high": None}},
        {**GOOD, "action": {"kind": "box", "shape": [2], "dtype": "float32", "low": [1, 2, 3], "high": None}},
        {**GOOD, "action": {"kind": "box", "shape": [2], "dtype": "float32", "low": "x", "high": None}},
        {**GOOD, "action": {"kind": "box", "shape": [2], "dtype": "int32", "low": {}, "high": 10**400}},
        {**GOOD, "native": []}, {**GOOD, "native": {**NATIVE, "action_dtype": "O"}},
        {**GOOD, "native": {**NATIVE, "action_start": [0, 1, 2]}}, {**GOOD, "native": {**NATIVE, "action_start": "x"}},
        {**GOOD, "native": {**NATIVE, "action_start": 10**30}},
        {**GOOD, "native": {**NATIVE, "observation_starts": [[["a"], {}]]}},
        {**GOOD, "native": {**NATIVE, "observation_starts": [3]}},
        {**GOOD, "native": {**NATIVE, "observation_starts": [[[None], 1]]}},
    ],
    ids=lambda value: str(value)[-60:],
)  # fmt: skip
def test_a_spec_that_no_policy_has_is_refused_in_a_line(change: Any) -> None:
    with pytest.raises(UserError, match=r"^config\.json: its spec is none that Runnel writes") as caught:
        spec_json.from_json(change, "config.json")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_spaces_nested_too_deep_are_refused() -> None:
    space: Any = {"kind": "discrete", "n": 2, "shape": [], "dtype": "int32"}
    for _ in range(500):
        space = {"kind": "tuple", "spaces": [space]}
    with pytest.raises(UserError, match="nested too deep"):
        spec_json.from_json({**GOOD, "observation": space}, "config.json")
