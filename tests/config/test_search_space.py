"""The settings that a sweep varies."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.algorithms.ppo import PPO
from runnel.config import search_space
from runnel.config.search_space import Choice, IntUniform, LogUniform, Uniform
from runnel.errors import UserError


@dataclass(frozen=True)
class Settings:
    rate: float = 0.1
    size: int = 4
    flag: bool = False
    name: str | None = None
    hidden: tuple[int, ...] = (64, 64)


def test_a_space_from_text() -> None:
    pairs = ["rate=log:1e-4:1e-2", "size=int:2:8", "flag=true,false", "name=none,a", "hidden=(64,64),(128,)"]
    assert search_space.parse(Settings, pairs) == {
        "rate": LogUniform(1e-4, 1e-2),
        "size": IntUniform(2, 8),
        "flag": Choice((True, False)),
        "name": Choice((None, "a")),
        "hidden": Choice(((64, 64), (128,))),
    }
    assert search_space.parse(Settings, ["rate=0:1"]) == {"rate": Uniform(0.0, 1.0)}
    assert search_space.parse(Settings, ["rate=1e-3,1e-2", "size=64,128"]) == {
        "rate": Choice((1e-3, 1e-2)),
        "size": Choice((64, 128)),
    }


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("learning_rat=log:1e-4:1e-2", "did you mean 'learning_rate'"),
        ("unroll=log:1:2", "range of floats, expected int:LOW:HIGH"),
        ("learning_rate=log:0:1", "0 < LOW < HIGH"),
        ("learning_rate=1:0", "LOW < HIGH"),
        ("learning_rate=log:1", "expected log:LOW:HIGH"),
        ("learning_rate=log:a:1", "expected a number"),
        ("learning_rate=nan,1", "expected a finite number"),
        ("unroll=64,64", "twice"),
        ("unroll=", "found 0 values"),
        ("unroll=big", "expected a whole number"),
        ("unroll", "expected key=value"),
    ],
)
def test_what_no_setting_can_have_is_refused(pair: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        search_space.parse(PPO, [pair])


@pytest.mark.parametrize("over", [{}, [1], {"unroll": 3}, {"unroll": [object()]}, {"unroll": range(2000)}])
def test_a_space_from_python_is_checked(over: Any) -> None:
    with pytest.raises(UserError, match=r"^over="):
        search_space.checked(PPO, over)


NUMBERS = st.floats(1e-6, 1e6, allow_nan=False)
RANGES = st.one_of(
    st.tuples(NUMBERS, NUMBERS).filter(lambda x: x[0] < x[1]).map(lambda x: ("rate", LogUniform(*x))),
    st.tuples(NUMBERS, NUMBERS).filter(lambda x: x[0] < x[1]).map(lambda x: ("rate", Uniform(*x))),
    st.tuples(st.integers(-9, 9), st.integers(10, 99)).map(lambda x: ("size", IntUniform(*x))),
    st.lists(st.lists(st.integers(-(2**53), 2**53), max_size=3).map(tuple), min_size=1, max_size=4, unique=True).map(
        lambda x: ("hidden", Choice(tuple(x)))
    ),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(RANGES, min_size=1, max_size=4).map(dict))
def test_a_space_is_the_same_after_it_was_written_and_read(space: search_space.Space) -> None:
    written = json.loads(json.dumps(search_space.to_json(space)))
    assert search_space.from_json(Settings, written) == space
    for probe in search_space.probes(space):
        assert all(search_space.contains(space[name], value) for name, value in probe.items())


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"rate": 1},
        {"rate": {"kind": "evil"}},
        {"rate": {"kind": ["log"], "low": 1, "high": 2}},
        {"rate": {"kind": "log", "low": 1}},
        {"rate": {"kind": "log", "low": "1", "high": 2}},
        {"rate": {"kind": "log", "low": 1, "high": 10**400}},
        {"size": {"kind": "choice", "values": 3}},
        {"size": {"kind": "choice", "values": [{}]}},
        {"size": {"kind": "choice", "values": ["os:system"]}},
        {"name": {"kind": "choice", "values": ["evil:Class"]}},
        {"other": {"kind": "choice", "values": [1]}},
    ],
)
def test_a_space_that_was_edited_is_refused(data: Any) -> None:
    with pytest.raises(UserError):
        search_space.from_json(Settings, data)


def test_a_grid_has_every_combination_in_order() -> None:
    space = search_space.parse(Settings, ["size=int:1:2", "flag=true,false"])
    assert [tuple(point.values()) for point in search_space.grid(space)] == [
        (1, True), (1, False), (2, True), (2, False),
    ]  # fmt: skip
    with pytest.raises(UserError, match="expected a list of values for sampler=grid"):
        search_space.grid({"rate": Uniform(0, 1)})
