"""Numbers drawn our own way are JAX's numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.ops import random


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_uniform_is_that_of_jax(seed):
    keys = jax.random.split(jax.random.key(seed), 1000)
    found = jax.jit(jax.vmap(random.uniform))(keys)
    np.testing.assert_array_equal(found, jax.vmap(lambda key: jax.random.uniform(key, dtype=jnp.float32))(keys))
    assert found.dtype == jnp.float32


def test_uniform_takes_keys_of_any_kind():
    assert 0 <= random.uniform(jax.random.key(0, impl="rbg")) < 1
