"""What critics are to learn: the value of where a transition ended."""

from __future__ import annotations

from typing import Any

import jax
import optax
import rlax

from runnel.ops.n_step import Transition
from runnel.types import Array


def td_errors(q_tm1: Array, items: Transition, v_t: Array) -> Array:
    """[batch, critics] how far each critic's values are from what all are to learn, given values `v_t` [batch]."""
    of_all = jax.vmap(rlax.td_learning, (0, None, None, None))
    errors: Any = jax.vmap(of_all)(q_tm1, items.r_t, items.discount_t, v_t)
    return errors


def critic_loss(errors: Array, weights: Array) -> Array:
    """[] of all critics, items weighted; each critic learns as if it were alone."""
    return (weights * optax.l2_loss(errors).sum(-1)).mean()
