"""Which settings can differ between members of one program."""

import dataclasses
import math
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
    exact: float = 0.5
    text: float = 0.5

    def value(self) -> Any:
        assert type(self.exact) is float
        self.text.is_integer()
        found = jnp.float32(1.0) * self.temperature
        if self.weight is not None:
            found = found * self.weight
        return found + math.log(self.logarithm) + (1.0 if self.decision > 0.1 else 0.0)


@dataclass(frozen=True)
class Derived(Settings):
    half: float = dataclasses.field(init=False, default=0.0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", self.temperature / 2)


def separated(*members: Any) -> Any:
    def attempt(make: Any, names: Any) -> None:
        jax.eval_shape(lambda values: make(values).value(), {name: setting_type() for name in names})

    return separate(members, attempt)


def test_a_float_that_only_arrays_see_is_traced() -> None:
    found = separated(Settings(temperature=1.0), Settings(temperature=2.0), Settings(temperature=3.0))
    assert (found.traced, found.fixed, found.programs) == (("temperature",), {}, ((0, 1, 2),))


def test_a_float_that_python_needs_is_fixed_and_its_members_are_apart() -> None:
    found = separated(Settings(logarithm=2.0), Settings(logarithm=3.0, temperature=2.0), Settings(logarithm=2.0))
    assert found.traced == ("temperature",)
    assert "Python code needs its value" in found.fixed["logarithm"]
    assert found.programs == ((0, 2), (1,))
    assert "decision" in separated(Settings(decision=0.0), Settings()).fixed


@pytest.mark.parametrize(("name", "raised"), [("exact", "AssertionError"), ("text", "AttributeError")])
def test_whatever_code_raises_for_a_traced_setting_fixes_it(name: str, raised: str) -> None:
    found = separated(Settings(), Settings(**{name: 0.25}))
    assert (found.traced, found.programs) == ((), ((0,), (1,)))
    assert raised in found.fixed[name]


def test_an_optional_float_is_traced_where_all_have_set_it() -> None:
    assert separated(Settings(weight=1.0), Settings(weight=2.0)).traced == ("weight",)
    found = separated(Settings(weight=1.0), Settings(weight=None))
    assert (found.traced, found.programs) == ((), ((0,), (1,)))


def test_what_is_no_float_is_fixed() -> None:
    found = separated(Settings(unroll=8), Settings(unroll=16))
    assert "is not a float" in found.fixed["unroll"]
    assert found.programs == ((0,), (1,))


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
