"""What critics are to learn: the value of where a transition ended."""

from __future__ import annotations

import optax

from runnel.ops.n_step import Transition
from runnel.ops.td import td_error
from runnel.types import Array


def td_errors(q_tm1: Array, items: Transition, v_t: Array) -> Array:
    """[batch, critics] how far each critic's values are from what all are to learn, given values `v_t` [batch]."""
    return td_error(q_tm1, items.r_t[:, None], items.discount_t[:, None], v_t[:, None])


def critic_loss(errors: Array, weights: Array) -> Array:
    """[] of all critics, items weighted; each critic learns as if it were alone."""
    return (weights * optax.l2_loss(errors).sum(-1)).mean()
