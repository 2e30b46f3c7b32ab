"""Every random number of a run, named by (seed, purpose, step, index) and never by a worker's rank.

That is what makes distributions compute the same training: whoever plays column 17 at step 4096, and in
whatever batch, draws the same number.
"""

from typing import Final

import jax
import jax.numpy as jnp

from runnel.types import Array

INIT: Final = 0
ENVIRONMENT: Final = 1
ACT: Final = 2
LEARN: Final = 3
SAMPLE: Final = 4
MAP: Final = 5


def base_key(seed: int | Array, purpose: int) -> Array:
    """The root of one purpose's stream of keys."""
    return jax.random.fold_in(jax.random.key(seed), purpose)


def column_keys(base: Array, step: Array, indices: Array) -> Array:
    """[B] one key for each column at one step. `step` counts from the start of the run, for all columns."""
    at_step = jax.random.fold_in(base, step)
    return jax.vmap(jax.random.fold_in, (None, 0))(at_step, jnp.asarray(indices, jnp.uint32))


def reset_keys(base: Array, indices: Array) -> Array:
    """[B] the keys that start each environment's first episode."""
    return column_keys(base, jnp.uint32(0), indices)


def environment_keys(base: Array, step: Array, indices: Array) -> Array:
    """[B, 2] the keys of environment step `step` (0 is the first): of the step, and of the reset after it."""
    return jax.vmap(jax.random.split)(column_keys(base, jnp.asarray(step, jnp.uint32) + 1, indices))
