"""Lowers convolutions on CPUs to the one layout that XLA has a fast kernel for.

XLA's CPU compiler rewrites convolutions into that layout (`NHWC`, `HWIO`) only in a program's entry computation. Inside
a loop the gradients of a convolution keep the layouts that JAX chose for them, and run in a naive loop nest, about ten
times slower. Here every convolution is lowered in the fast layout, with transpositions around it, so a training step
runs equally fast in a `lax.scan`, in a `lax.while_loop` or alone. This holds for all networks, users' own included,
because it replaces how JAX lowers the primitive on CPUs. The numbers are the same.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax._src.lax import convolution  # JAX's own lowering has no public name
from jax.interpreters import mlir

Array = jax.Array

_LEFT_TO_JAX: contextvars.ContextVar[bool] = contextvars.ContextVar("left_to_jax", default=False)

_lower = functools.partial(convolution._conv_general_dilated_lower, expand_complex_convolutions=True)


def register() -> None:
    """Registers this lowering of convolutions for CPUs in this process."""
    mlir.register_lowering(convolution.conv_general_dilated_p, rule, platform="cpu")


@contextlib.contextmanager
def left_to_jax() -> Iterator[None]:
    """Within this context, convolutions are lowered as JAX itself does it: for programs that run elsewhere."""
    token = _LEFT_TO_JAX.set(True)
    try:
        yield
    finally:
        _LEFT_TO_JAX.reset(token)


def fast_layout(rank: int) -> lax.ConvDimensionNumbers:
    """Batch, space, features; kernels as space, input features, output features."""
    last, space = rank - 1, tuple(range(1, rank - 1))
    kernel = (last, rank - 2, *range(rank - 2))
    return lax.ConvDimensionNumbers((0, last, *space), kernel, (0, last, *space))


def rule(ctx: Any, lhs: Any, rhs: Any, *, dimension_numbers: lax.ConvDimensionNumbers, **settings: Any) -> Any:
    """The lowering rule of a convolution."""
    fast = fast_layout(len(dimension_numbers.lhs_spec))
    if dimension_numbers == fast or _LEFT_TO_JAX.get():
        return _lower(ctx, lhs, rhs, dimension_numbers=dimension_numbers, **settings)
    convolve = functools.partial(_transposed, given=dimension_numbers, fast=fast, settings=settings)
    return mlir.lower_fun(convolve, multiple_results=False)(ctx, lhs, rhs)


def _transposed(
    lhs: Array, rhs: Array, given: lax.ConvDimensionNumbers, fast: lax.ConvDimensionNumbers, settings: dict[str, Any]
) -> Array:
    """The convolution of the `given` layout, computed in the `fast` one."""
    out = convolution.conv_general_dilated_p.bind(
        _moved(lhs, given.lhs_spec, fast.lhs_spec),
        _moved(rhs, given.rhs_spec, fast.rhs_spec),
        dimension_numbers=fast,
        **settings,
    )
    return _moved(out, fast.out_spec, given.out_spec)


def _moved(x: Array, source: Sequence[int], target: Sequence[int]) -> Array:
    """`x` with the dimension at `source[i]` moved to `target[i]`."""
    order = [0] * x.ndim
    for before, after in zip(source, target, strict=True):
        order[after] = before
    return lax.transpose(x, order)
