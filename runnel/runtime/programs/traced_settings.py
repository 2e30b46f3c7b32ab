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


class TracedSettings(NamedTuple):
    """Which settings are arguments of the program of an algorithm, found by tracing with its other settings.

    They are also those of every algorithm that differs from it only in them: what code does depends on the others.
    """

    algorithm: Algorithm
    asked: tuple[str, ...]
    traced: tuple[str, ...]
    fixed: dict[str, str]  # those asked for that are not traced, and why

    def holds(self, member: Algorithm) -> bool:
        """Whether the program can train this member too."""
        differ = differing([self.algorithm, member])
        return set(differ) <= set(self.traced) and all(_is_float(member, name) for name in differ)


class ProgramMembers(NamedTuple):
    """The members that share a program."""

    members: tuple[int, ...]
    settings: TracedSettings

    @property
    def traced(self) -> tuple[str, ...]:
        return self.settings.traced


class Separation(NamedTuple):
    """How members that differ in settings share programs."""

    programs: tuple[ProgramMembers, ...]
    fixed: dict[str, str]  # settings in which members differ, and why some programs have them as constants

    @property
    def traced(self) -> tuple[str, ...]:
        """Settings that are arguments of one of the programs."""
        return tuple(dict.fromkeys(name for program in self.programs for name in program.traced))


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


def separate(
    members: Sequence[Algorithm], attempt: Attempt, varying: Sequence[str] = (), known: Sequence[TracedSettings] = ()
) -> Separation:
    """Which members share a program, where they differ in settings.

    Whether a float can be traced may depend on settings that are fixed, so it is found for each program by itself, from
    its own first member. `varying`: settings that are traced where they can be, although the members may not differ in
    them yet. `known`: found earlier, and not traced again.
    """
    differ = differing(members)
    asked = tuple(dict.fromkeys([*(name for name in differ if _floats_differ(members, name)), *varying]))
    programs: list[tuple[TracedSettings, list[int]]] = []
    for index, member in enumerate(members):
        numbers = next((numbers for settings, numbers in programs if settings.holds(member)), None)
        if numbers is not None:
            numbers.append(index)
            continue
        own = tuple(name for name in asked if _is_float(member, name))
        found = next((each for each in known if each.holds(member) and set(own) <= set(each.asked)), None)
        programs.append((found or _trace(member, own, attempt), [index]))
    fixed = {name: why for name in differ if (why := _why_fixed(name, [settings for settings, _ in programs]))}
    return Separation(tuple(ProgramMembers(tuple(numbers), settings) for settings, numbers in programs), fixed)


def values_of(members: Sequence[Algorithm], names: Sequence[str]) -> dict[str, np.ndarray]:
    """[M] of each setting."""
    return {name: np.array([float(getattr(member, name)) for member in members]) for name in names}


def _trace(member: Algorithm, asked: tuple[str, ...], attempt: Attempt) -> TracedSettings:
    """Which of these settings, which are floats, can be traced: all at once, or else one more at a time."""
    derived = set(vars(member)) - {field.name for field in dataclasses.fields(member)}  # type: ignore[arg-type]
    derived |= {field.name for field in dataclasses.fields(member) if not field.init}  # type: ignore[arg-type]
    if derived:
        why = f"{type(member).__name__} derives {', '.join(sorted(derived))} from its settings when it is made"
        return TracedSettings(member, asked, (), dict.fromkeys(asked, why))
    if not asked or not _attempt(member, asked, attempt):
        return TracedSettings(member, asked, asked, {})
    traced: list[str] = []
    fixed: dict[str, str] = {}
    for name in asked:
        problem = _attempt(member, [*traced, name], attempt)
        if problem:
            fixed[name] = problem
        else:
            traced.append(name)
    return TracedSettings(member, asked, tuple(traced), fixed)


def _why_fixed(name: str, programs: Sequence[TracedSettings]) -> str:
    """Why a setting in which members differ is a constant of some programs; empty if it is one of none."""
    constant = [program for program in programs if name not in program.traced]
    reasons = [program.fixed[name] for program in constant if name in program.fixed]
    reasons += [
        f"{getattr(program.algorithm, name)!r} is not a float"
        for program in constant
        if not _is_float(program.algorithm, name)
    ]
    if not reasons:
        return ""
    some = f", in {len(constant)} of {len(programs)} programs" if len(constant) < len(programs) else ""
    return reasons[0] + some


def _is_float(member: Algorithm, name: str) -> bool:
    return _number(getattr(member, name)) and "float" in str(_annotation(member, name))


def _floats_differ(members: Sequence[Algorithm], name: str) -> bool:
    """Whether members differ in the values of a setting, those aside for which it is no float, such as None."""
    return len({float(getattr(member, name)) for member in members if _is_float(member, name)}) > 1


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
