"""The dtype that networks compute in: float32, or bfloat16 (`precision=bf16`).

Parameters, optimisers, statistics, recurrent memories and losses have `default_float()` in either case. Networks cast
the inputs and weights of their products to `compute_dtype()`; last layers compute in `default_float()`.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from runnel.config.run_config import Precision
from runnel.errors import UserError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_PRECISION: contextvars.ContextVar[Precision] = contextvars.ContextVar("precision", default="float32")


def default_float() -> Any:
    """The dtype of parameters: float32, or float64 under `jax_enable_x64`."""
    return jnp.result_type(float)


def compute_dtype() -> Any:
    """The dtype of what a network multiplies, in the function that is being traced."""
    return jnp.bfloat16 if _PRECISION.get() == "bf16" else default_float()


@contextlib.contextmanager
def computing(precision: Precision) -> Iterator[None]:
    """Within this context, networks are traced with this precision."""
    token = _PRECISION.set(precision)
    try:
        yield
    finally:
        _PRECISION.reset(token)


def with_precision(function: FunctionT, precision: Precision) -> FunctionT:
    """The function, whose networks compute with this precision wherever it is traced.

    It is a function of its own, so that JAX never takes what it traced with another precision.
    """

    @functools.wraps(function)
    def computed(*args: Any, **keywords: Any) -> Any:
        with computing(precision):
            return function(*args, **keywords)

    return computed  # type: ignore[return-value]


def check_precision(precision: Precision) -> None:
    """Refuses bfloat16 where JAX computes with 64 bits."""
    if precision == "bf16" and jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise UserError(
            "precision=bf16: found jax_enable_x64, expected JAX's default of 32 bits; leave one of the two out",
            keywords=("precision",),
        )
