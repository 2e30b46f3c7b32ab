"""Which settings can differ between members of one program."""

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.algorithms.ppo import PPO
from runnel.runtime.programs.traced_settings import as_settings, differing, separate, setting_type, with_settings


@dataclass(frozen=True)
class Settings(PPO):
    """Settings that are used in all ways."""

    temperature: float = 1.0
    weight: float | None = None
    logarithm: float = 2.0
    decision: float = 0.5
    extra: float = 1.0
    kind: str = "a"
    exact: float = 0.5
    text: float = 0.5

    def value(self) -> Any:
        assert type(self.exact) is float
        self.text.is_integer()
        found = jnp.float32(1.0) * self.temperature
        if self.weight is not None:
            found = found * self.weight
        if self.kind == "b" or self.decision > 1.0:
            found = found + math.log(self.extra)
        return found + math.log(self.logarithm) + (1.0 if self.decision > 0.1 else 0.0)


@dataclass(frozen=True)
class Derived(Settings):
    half: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.temperature / 2)


ATTEMPTS: list[tuple[str, ...]] = []
"""The settings of each attempt to trace."""


def attempt(make: Any, names: Any) -> None:
    ATTEMPTS.append(tuple(names))
    jax.eval_shape(lambda values: make(values).value(), {name: setting_type() for name in names})


def separated(*members: Any, **more: Any) -> Any:
    ATTEMPTS.clear()
    return separate(members, attempt, **more)


def programs(found: Any) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """The members of each program and the settings that are its arguments."""
    return [(program.members, program.traced) for program in found.programs]


def test_a_float_that_only_arrays_see_is_traced() -> None:
    found = separated(Settings(temperature=1.0), Settings(temperature=2.0), Settings(temperature=3.0))
    assert (found.fixed, programs(found)) == ({}, [((0, 1, 2), ("temperature",))])


def test_a_float_that_python_needs_is_fixed_and_its_members_are_apart() -> None:
    found = separated(Settings(logarithm=2.0), Settings(logarithm=3.0, temperature=2.0), Settings(logarithm=2.0))
    assert found.traced == ("temperature",)
    assert "Python code needs its value" in found.fixed["logarithm"]
    assert programs(found) == [((0, 2), ("temperature",)), ((1,), ("temperature",))]
    assert "decision" in separated(Settings(decision=0.0), Settings()).fixed


@pytest.mark.parametrize(("name", "raised"), [("exact", "AssertionError"), ("text", "AttributeError")])
def test_whatever_code_raises_for_a_traced_setting_fixes_it(name: str, raised: str) -> None:
    found = separated(Settings(), Settings(**{name: 0.25}))
    assert programs(found) == [((0,), ()), ((1,), ())]
    assert raised in found.fixed[name]


def test_an_optional_float_is_traced_where_all_have_set_it() -> None:
    assert separated(Settings(weight=1.0), Settings(weight=2.0)).traced == ("weight",)
    found = separated(Settings(weight=1.0), Settings(weight=None))
    assert programs(found) == [((0,), ()), ((1,), ())]
    assert found.fixed == {"weight": "None is not a float"}


@pytest.mark.parametrize(("weights", "expected"), [
    ((None, 1.0, 2.0, 3.0), [((0,), ()), ((1, 2, 3), ("weight",))]),
    ((1.0, 2.0, None, 3.0, None), [((0, 1, 3), ("weight",)), ((2, 4), ())]),
])  # fmt: skip
def test_an_optional_float_that_some_leave_out_is_traced_for_the_others(weights: Any, expected: Any) -> None:
    found = separated(*(Settings(weight=weight) for weight in weights))
    assert programs(found) == expected
    assert found.fixed == {"weight": "None is not a float, in 1 of 2 programs"}


MIXED = [Settings(extra=1.0, kind="a"), Settings(extra=2.0, kind="a"), Settings(extra=3.0, kind="b"),
         Settings(extra=4.0, kind="b")]  # fmt: skip
DECIDED = [dataclasses.replace(each, kind="a", decision=float("ab".index(each.kind)) * 2) for each in MIXED]


@pytest.mark.parametrize("members", [MIXED, DECIDED], ids=["a choice", "another float"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 0, 1), (2, 0, 3, 1)])
def test_a_float_that_python_needs_for_some_members_is_traced_for_the_others(members: Any, order: Any) -> None:
    found = separated(*(members[k] for k in order))
    parts = {tuple(order[k] for k in part): traced for part, traced in programs(found)}
    assert parts == {(0, 1): ("extra",), (2,): (), (3,): ()}
    assert re.match(r"Python code needs its value \(.*\), in 2 of 3 programs$", found.fixed["extra"], re.DOTALL)


def test_settings_are_traced_once_for_all_members_that_their_program_can_train() -> None:
    first = separated(*MIXED)
    assert len(ATTEMPTS) == 5  # at once, and for `b` again one by one
    known = [program.settings for program in first.programs]
    assert programs(separated(*MIXED, known=known)) == programs(first)
    assert ATTEMPTS == []
    more = separated(Settings(extra=7.0), Settings(extra=8.0, temperature=2.0), known=known)
    assert programs(more) == [((0, 1), ("temperature", "extra"))], "nobody had asked for the temperature"


def test_what_is_no_float_is_fixed() -> None:
    found = separated(Settings(unroll=8), Settings(unroll=16))
    assert "is not a float" in found.fixed["unroll"]
    assert programs(found) == [((0,), ()), ((1,), ())]


def test_settings_that_others_are_derived_from_are_fixed() -> None:
    found = separated(Derived(temperature=1.0), Derived(temperature=2.0))
    assert "derives half" in found.fixed["temperature"]


def test_a_whole_number_for_a_float_is_the_same_setting() -> None:
    assert differing([Settings(temperature=1), Settings(temperature=1.0)]) == []


def test_values_are_not_looked_at_again() -> None:
    made = with_settings(Settings(), {"clip": -1.0})  # which `__post_init__` would refuse
    assert made.clip == -1.0  # type: ignore[attr-defined]
    assert isinstance(made, Settings)


def test_a_traced_setting_has_no_type_of_its_own() -> None:
    """As a number in Python code: half precision stays half precision."""
    found = jax.eval_shape(
        lambda value: jnp.float16(1.0) * with_settings(Settings(), {"temperature": value}).temperature,  # type: ignore[attr-defined]
        setting_type(),
    )
    assert found.dtype == jnp.float16
    (values,) = as_settings({"temperature": np.array([1.0, 2.0])}).values()
    assert values.weak_type
