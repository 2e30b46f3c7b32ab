"""PPO's clipped objective, which does not reward moving a policy far from the one that acted."""

from __future__ import annotations

import jax.numpy as jnp

from runnel.types import Array


def clipped_surrogate(ratio: Array, advantage: Array, clip: float, dual_clip: float | None = None) -> Array:
    """[...] the objective of each step, given ratios of probabilities, now and when acting.

    A bad action whose probability has grown manyfold since it was taken is worth `ratio * advantage`, without bound;
    `dual_clip` (Ye et al., 2020), above 1, bounds this at that multiple of its advantage.
    `rlax.clipped_surrogate_pg_loss` has neither that bound nor a mask of steps.
    """
    objective = jnp.fmin(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
    if dual_clip is None:
        return objective
    return jnp.where(advantage < 0, jnp.fmax(objective, dual_clip * advantage), objective)
