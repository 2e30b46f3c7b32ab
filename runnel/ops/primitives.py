"""Walks the equations of a traced function (a jaxpr), including those of inner loops and branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr, and of all functions that it calls."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(inner):
                yield from equations(inner)


def has_convolution(jaxpr: Any) -> bool:
    return any(equation.primitive.name == "conv_general_dilated" for equation in equations(jaxpr))


def _is_jaxpr(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")
