"""Settings of an algorithm as data: members of one program may differ in them without being compiled separately.

A float setting is traced where the whole iteration can be: where neither the graph nor any Python code needs its
value. `math.log(self.entropy_cost)` needs it, `jnp.log(self.entropy_cost)` does not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import Algorithm
from runnel.types import Array


class NotShared(Exception):
    """Members that differ in a setting would differ in what one program has in common for all of them."""


class Separation(NamedTuple):
    """How members that differ in settings share programs."""

    traced: tuple[str, ...]  # settings that are arguments of the program
    fixed: dict[str, str]  # settings that are not, and why
    programs: tuple[tuple[int, ...], ...]  # the members of each program


def with_settings(algorithm: Algorithm, values: Mapping[str, Any]) -> Algorithm:
    """The algorithm with other values of some settings, which may be traced: nothing looks at them here.

    The values were checked when each member's own algorithm was made.
    """
    made = object.__new__(type(algorithm))
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        value = values[field.name] if field.name in values else getattr(algorithm, field.name)
        object.__setattr__(made, field.name, value)
    return made


def setting_type(*shape: int) -> jax.ShapeDtypeStruct:
    """The type of a setting that is traced: that of a number in Python code, which yields to that of arrays."""
    return jax.ShapeDtypeStruct(shape, jnp.result_type(float), weak_type=True)


def as_settings(values: Mapping[str, np.ndarray]) -> dict[str, Array]:
    """[M] of each setting, of that type."""
    return {name: jnp.stack([jnp.asarray(float(value)) for value in each]) for name, each in values.items()}


def differing(members: Sequence[Algorithm]) -> list[str]:
    """The settings in which members differ."""
    first = members[0]
    names = [field.name for field in dataclasses.fields(first)]  # type: ignore[arg-type]
    return [name for name in names if any(_differ(getattr(first, name), getattr(m, name)) for m in members[1:])]


Attempt = Callable[[Callable[[Mapping[str, Array]], Algorithm], Sequence[str]], object]
"""Traces an iteration of members that differ in these settings, with what makes an algorithm of their values; raises
where that cannot be done."""


def separate(members: Sequence[Algorithm], attempt: Attempt, varying: Sequence[str] = ()) -> Separation:
    """Which members share a program, where they differ in settings.

    `varying`: settings that are traced where they can be, although the members may not differ in them yet.
    """
    differ = differing(members)
    traced, fixed = [], {}
    for name in dict.fromkeys([*differ, *varying]):
        reason = _not_traced(members, name, attempt)
        if not reason:
            traced.append(name)
        elif name in differ:
            fixed[name] = reason
    if len(traced) > 1:
        problem = _attempt(members[0], traced, attempt)
        if problem:
            fixed |= {name: problem for name in traced if name in differ}
            traced = []
    programs: list[list[int]] = []
    for index, member in enumerate(members):
        alike = (p for p in programs if not set(differing([members[p[0]], member])) & set(fixed))
        program = next(alike, None)
        if program is None:
            programs.append([index])
        else:
            program.append(index)
    return Separation(tuple(traced), fixed, tuple(map(tuple, programs)))


def values_of(members: Sequence[Algorithm], names: Sequence[str]) -> dict[str, np.ndarray]:
    """[M] of each setting."""
    return {name: np.array([float(getattr(member, name)) for member in members]) for name in names}


def _not_traced(members: Sequence[Algorithm], name: str, attempt: Attempt) -> str:
    """Why a setting cannot be traced; empty where it can."""
    for member in members:
        value = getattr(member, name)
        if type(value) not in (int, float) or "float" not in str(_annotation(member, name)):
            return f"{value!r} is not a float"
    derived = set(vars(members[0])) - {field.name for field in dataclasses.fields(members[0])}  # type: ignore[arg-type]
    derived |= {field.name for field in dataclasses.fields(members[0]) if not field.init}  # type: ignore[arg-type]
    if derived:
        return f"{type(members[0]).__name__} derives {', '.join(sorted(derived))} from its settings when it is made"
    return _attempt(members[0], [name], attempt)


def _attempt(algorithm: Algorithm, names: Sequence[str], attempt: Attempt) -> str:
    try:
        attempt(lambda values: with_settings(algorithm, values), names)
    except NotShared as error:
        return str(error)
    except Exception as error:  # it comes from the user's code, which may raise anything
        text = str(error).strip().splitlines()
        return f"Python code needs its value ({type(error).__name__}{': ' + text[0] if text else ''})"
    return ""


def _annotation(algorithm: Algorithm, name: str) -> Any:
    return next(field.type for field in dataclasses.fields(algorithm) if field.name == name)  # type: ignore[arg-type]


def _differ(a: Any, b: Any) -> bool:
    try:
        return type(a) is not type(b) or bool(a != b) if not _number(a) or not _number(b) else float(a) != float(b)
    except (TypeError, ValueError):
        return a is not b


def _number(value: Any) -> bool:
    return type(value) in (int, float)
