"""Random keys of a run, determined by (seed, purpose, step, index) and never by a worker's rank.

So all distributions compute the same training: any worker that steps column 17 at step 4096, in any batch, draws the
same number.
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


def uniform(key: Array) -> Array:
    """[] float32 in [0, 1), equal to `jax.random.uniform(key)` and faster on CPUs.

    JAX's hash is a loop of small operations on CPUs, which takes longer than a small network. Unrolled, XLA fuses it
    with the operations around it.
    """
    if str(jax.random.key_impl(key)) != "threefry2x32":
        return jax.random.uniform(key, dtype=jnp.float32)
    # As JAX does: 23 bits are what a float32 between 1 and 2 has to spare.
    return (_bits(key) >> 9).astype(jnp.float32) * jnp.float32(2.0**-23)


def _bits(key: Array) -> Array:
    """[] uint32, equal to `jax.random.bits(key)`: Threefry-2x32 (Salmon et al., 2011) of the number 0."""
    one, other = jax.random.key_data(key)
    keys = (one, other, one ^ other ^ jnp.uint32(0x1BD11BDA))
    x, y = one, other
    for group in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x = x + y
            y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x ^ y
