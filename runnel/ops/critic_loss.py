"""TD errors and the loss of one or several critics."""

from __future__ import annotations

import optax

from runnel.ops.n_step import Transition
from runnel.ops.td import td_error
from runnel.types import Array


def td_errors(q_tm1: Array, items: Transition, v_t: Array) -> Array:
    """[batch, critics] the TD error of each critic against a shared target, given next values `v_t` [batch]."""
    return td_error(q_tm1, items.r_t[:, None], items.discount_t[:, None], v_t[:, None])


def critic_loss(errors: Array, weights: Array) -> Array:
    """[] the weighted squared errors, summed over critics; each critic learns independently."""
    return (weights * optax.l2_loss(errors).sum(-1)).mean()
