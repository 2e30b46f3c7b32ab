"""What the device is like, for the few operations that have a better form on one kind than on another."""

import jax
from jax._src import xla_bridge  # there is no public way to ask whether JAX has started


def launch_bound() -> bool:
    """Whether launching a kernel costs more than most kernels do: GPUs, not CPUs.

    Never starts JAX on its devices: before that, functions are traced for their types only, which are the same.
    """
    return xla_bridge.backends_are_initialized() and jax.default_backend() != "cpu"
