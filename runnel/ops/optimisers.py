"""The two optimisers that actor-critics are trained with, by name."""

from __future__ import annotations

from typing import Literal

import optax

Optimiser = Literal["rmsprop", "adam"]


def optimiser(name: Optimiser, learning_rate: float, max_grad_norm: float) -> optax.GradientTransformation:
    """Clips the gradient's norm, then takes the step."""
    if name == "adam":
        step = optax.adam(learning_rate, eps=1e-5)
    else:
        # Losses are means over an unroll: the 0.1 that papers add to the scale suits sums, and would swamp these.
        step = optax.rmsprop(learning_rate, decay=0.99, eps=1e-5)
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), step)
