"""Temporal-difference errors: reward plus discounted next value, minus the value."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from runnel.types import Array


def td_error(v_tm1: Array, r_t: Array, discount_t: Array, v_t: Array) -> Array:
    """[...] the errors of values; the target is not differentiated."""
    return jax.lax.stop_gradient(r_t + discount_t * v_t) - v_tm1


def double_q_error(q_tm1: Array, a_tm1: Array, r_t: Array, discount_t: Array, q_t: Array, q_t_selector: Array) -> Array:
    """[batch] the errors of action values [batch, actions], with `q_t` of the action that `q_t_selector` prefers (van
    Hasselt et al., 2016)."""
    chosen = jnp.take_along_axis(q_t, q_t_selector.argmax(-1)[:, None], axis=-1)[:, 0]
    return td_error(jnp.take_along_axis(q_tm1, a_tm1[:, None], axis=-1)[:, 0], r_t, discount_t, chosen)
