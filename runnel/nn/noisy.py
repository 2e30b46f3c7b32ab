"""Noisy layers: weights with noise of learnt scale, for exploration (Fortunato et al., 2018).

The noise of a weight is the product of one number for its input and one for its output. So a layer of p by q draws p +
q numbers instead of p * q, and need not compute the noisy weights: two products with the same matrices suffice, and
every row of a batch may have different noise.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from runnel.nn import networks
from runnel.nn.networks import product
from runnel.ops.precision import compute_dtype, default_float
from runnel.types import Array

NOISE = "noise"
"""The stream of random numbers (linen's `rngs`) that noisy layers draw from; without one they use their means."""


class NoisyDense(linen.Module):
    """A layer of `size` outputs."""

    size: int
    deviation: float = 0.5  # of the noise at first, over the root of the number of inputs
    last: bool = False  # its outputs are values

    @linen.compact
    def __call__(self, x: Array) -> Array:
        reach, dtype = 1 / math.sqrt(x.shape[-1]), default_float()

        def uniform(key: Array, shape: tuple[int, ...]) -> Array:
            return jax.random.uniform(key, shape, dtype, -reach, reach)

        deviation = linen.initializers.constant(self.deviation * reach)
        kernel = self.param("kernel", uniform, (x.shape[-1], self.size))
        bias = self.param("bias", uniform, (self.size,))
        kernel_noise = self.param("kernel_noise", deviation, kernel.shape, dtype)
        bias_noise = self.param("bias_noise", deviation, bias.shape, dtype)
        means = product(x, kernel, self.last) + bias.astype(self._dtype())
        if not self.has_rng(NOISE):
            return means
        in_key, out_key = jax.random.split(self.make_rng(NOISE))
        noise = product(_drawn(in_key, x.shape[-1]) * x, kernel_noise, self.last) + bias_noise.astype(self._dtype())
        return means + _drawn(out_key, self.size).astype(self._dtype()) * noise

    def _dtype(self) -> Any:
        return networks.last_dtype() if self.last else compute_dtype()


def _drawn(key: Array, size: int) -> Array:
    """Normal numbers whose magnitudes are moved towards 1, so that products of two are about normal again."""
    z = jax.random.normal(key, (size,), default_float())
    return jnp.sign(z) * jnp.sqrt(jnp.abs(z))
