"""The one thing about hardware that changes how an array program is best written."""

import jax


def launch_bound() -> bool:
    """Whether each small operation costs a kernel's launch, so that fewer and larger ones are faster.

    True of accelerators. A CPU computes the same in its cache, where fewer and simpler instructions win.
    """
    return jax.default_backend() != "cpu"
