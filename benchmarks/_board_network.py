"""A network for Connect Four: every line of four stones lies in a window of 4x4 cells."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen

from runnel.nn.networks import default_float, dense
from runnel.types import Array

SIZE = 4


class Windows(linen.Module):
    """The same layer for all windows of a board `[H, W, C]`, then two layers over all of them.

    That is a convolution, written as a product of matrices.
    """

    features: int = 32
    hidden: int = 64

    @linen.compact
    def __call__(self, board: Array) -> Array:
        height, width, _ = board.shape
        corners = [(i, j) for i in range(height - SIZE + 1) for j in range(width - SIZE + 1)]
        windows = jnp.stack([jnp.ravel(board[i : i + SIZE, j : j + SIZE]) for i, j in corners])
        x = jnp.ravel(jax.nn.relu(dense(self.features)(windows.astype(default_float()))))
        for _ in range(2):
            x = jax.nn.relu(dense(self.hidden)(x))
        return x
