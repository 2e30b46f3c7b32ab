"""Constant folding and dead-code removal for exported functions.

What depends on no input is computed once, here: parts of normalised statistics, and the random numbers that greedy
acting asks for and does not use. Calls are written out, so that what is left are JAX's primitives alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax
import jax.extend.core
import numpy as np

from runnel.types import Array

CALLS: Final = frozenset({
    "pjit", "jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "remat",
    "remat2", "checkpoint",
})  # fmt: skip
"""Primitives that call a traced function with their own inputs."""

OUTSIDE: Final = frozenset({"pure_callback", "ffi_call"})
"""Primitives that run code outside of JAX without being marked as such."""

MOST_ELEMENTS: Final = 1 << 16
"""The largest constant that is folded, unless its inputs are as large: this keeps files small."""

Replaced = Mapping[str, Callable[..., Sequence[Array]]]
"""Replacements by the name of a primitive: a function of the same inputs and parameters that returns all outputs."""


class Place(NamedTuple):
    """The register of a value that depends on inputs."""

    number: int


class Step(NamedTuple):
    """One primitive, its inputs (places and constants) and the places of its outputs."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[Place, ...]


class Folded(NamedTuple):
    """A function of arrays as a list of primitives."""

    steps: tuple[Step, ...]
    outputs: tuple[Any, ...]  # places and constants
    used: frozenset[int]  # the numbers of the inputs that the outputs depend on

    def run(self, inputs: Sequence[Array | None], replaced: Replaced = MappingProxyType({})) -> tuple[Array, ...]:
        """Runs the function; inputs that are not used may be None. `replaced`: functions that replace primitives."""
        values: dict[Place, Any] = {Place(k): value for k, value in enumerate(inputs)}

        def read(ref: Any) -> Any:
            return values[ref] if isinstance(ref, Place) else ref

        for step in self.steps:
            given, instead = [read(ref) for ref in step.inputs], replaced.get(step.equation.primitive.name)
            found = _bind(step.equation, given) if instead is None else instead(*given, **step.equation.params)
            values.update(zip(step.outputs, found, strict=True))
        return tuple(map(read, self.outputs))


def fold(function: Callable[..., Sequence[Array]], *inputs: Any) -> Folded:
    """The function of arrays of these shapes and types."""
    traced = jax.make_jaxpr(function)(*inputs)
    folding = _Folding(len(inputs))
    outputs = folding.walk(traced.jaxpr, traced.consts, [Place(k) for k in range(len(inputs))])
    steps, used = _live(folding.steps, outputs)
    return Folded(
        tuple(step._replace(inputs=tuple(map(_value, step.inputs))) for step in steps),
        tuple(map(_value, outputs)),
        frozenset(place.number for place in used if place.number < len(inputs)),
    )


class _Computed:
    """The outputs of a primitive that depends on no input, computed when they are first needed."""

    def __init__(self, equation: Any, inputs: Sequence[Any]):
        self._equation, self._inputs = equation, inputs

    @cached_property
    def outputs(self) -> Sequence[Any]:
        return _bind(self._equation, list(map(_value, self._inputs)))


class _Constant(NamedTuple):
    of: _Computed
    number: int


def _value(ref: Any) -> Any:
    return ref.of.outputs[ref.number] if isinstance(ref, _Constant) else ref


class _Folding:
    """The steps of one function, as they are found."""

    def __init__(self, inputs: int):
        self.steps: list[Step] = []
        self._places = inputs

    def walk(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """The outputs of a traced function: places and constants."""
        known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def read(variable: Any) -> Any:
            return variable.val if hasattr(variable, "val") else known[variable]

        for equation in jaxpr.eqns:
            outputs = self._outputs(equation, [read(variable) for variable in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in jaxpr.outvars]

    def _outputs(self, equation: Any, inputs: list[Any]) -> Sequence[Any]:
        called = _called(equation, inputs)
        if called is not None:
            inner, given = called
            return self.walk(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given)
        if equation.primitive.name == "select_n" and (chosen := _one_value(inputs[0])) is not None:
            return [inputs[1 + int(chosen)]]
        if not any(isinstance(each, Place) for each in inputs) and _stays_small(equation) and not _leaves_jax(equation):
            computed = _Computed(equation, inputs)
            return [_Constant(computed, k) for k in range(len(equation.outvars))]
        outputs = tuple(Place(self._places + k) for k in range(len(equation.outvars)))
        self._places += len(outputs)
        self.steps.append(Step(equation, tuple(inputs), outputs))
        return outputs


def _called(equation: Any, inputs: list[Any]) -> tuple[Any, list[Any]] | None:
    """The function that an equation calls, if it can be inlined, and its arguments."""
    params: Mapping[str, Any] = equation.params
    if equation.primitive.name == "cond" and (chosen := _one_value(inputs[0])) is not None:
        branches = params["branches"]
        return branches[min(max(int(chosen), 0), len(branches) - 1)], inputs[1:]
    inner: Any = params.get("jaxpr") or params.get("call_jaxpr")
    if equation.primitive.name in CALLS and len(getattr(inner, "jaxpr", inner).invars) == len(inputs):
        return inner, inputs
    return None


def _one_value(ref: Any) -> Any:
    """The one value that all elements of a constant have; None if there is none."""
    if isinstance(ref, Place):
        return None
    flat = np.ravel(np.asarray(_value(ref)))
    return flat[0] if flat.size and (flat == flat[0]).all() else None


def _stays_small(equation: Any) -> bool:
    made, of = (sum(v.aval.size for v in variables) for variables in (equation.outvars, equation.invars))
    return made <= max(of, MOST_ELEMENTS)


def _leaves_jax(equation: Any) -> bool:
    """Whether the primitive calls Python or another library."""
    if equation.effects or equation.primitive.name in OUTSIDE:
        return True
    inner = jax.extend.core.jaxprs_in_params(equation.params)
    return any(_leaves_jax(each) for jaxpr in inner for each in jaxpr.eqns)


def _bind(equation: Any, inputs: Sequence[Any]) -> Sequence[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)  # some versions of JAX have them apart
    found = equation.primitive.bind(*functions, *inputs, **params)
    return found if equation.primitive.multiple_results else [found]


def _live(steps: Sequence[Step], outputs: Sequence[Any]) -> tuple[list[Step], set[Place]]:
    """The steps that the outputs depend on, and the places that they read."""
    live = {ref for ref in outputs if isinstance(ref, Place)}
    kept: list[Step] = []
    for step in reversed(steps):
        if live.intersection(step.outputs):
            kept.append(step)
            live |= {ref for ref in step.inputs if isinstance(ref, Place)}
    return kept[::-1], live
