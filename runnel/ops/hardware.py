"""Chooses the form of operations that run faster in one form on CPUs and in another on GPUs."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
from jax._src import xla_bridge  # there is no public way to ask whether JAX has started

_PLAIN: contextvars.ContextVar[bool] = contextvars.ContextVar("plain", default=False)


def launch_bound() -> bool:
    """Whether launching a kernel costs more than most kernels do: GPUs, not CPUs.

    Never starts JAX on its devices: before that, functions are traced for their types only, which are the same.
    """
    return not plain() and xla_bridge.backends_are_initialized() and jax.default_backend() != "cpu"


def plain() -> bool:
    """Whether to use the form that runs on any device and in any other program."""
    return _PLAIN.get()


@contextlib.contextmanager
def plain_networks() -> Iterator[None]:
    """Within this context, functions are traced in a form for any device, without device-specific kernels."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)
