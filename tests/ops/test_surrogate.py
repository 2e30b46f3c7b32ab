"""PPO's objective: rlax's, and bounded from below where that is asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax

from runnel.ops.averages import mean, standardised
from runnel.ops.surrogate import clipped_surrogate

RATIO = jnp.array([0.5, 0.9, 1.5, 10.0, 0.5, 0.9, 1.5, 10.0])
ADVANTAGE = jnp.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])


def test_it_is_that_of_rlax():
    found = -clipped_surrogate(RATIO, ADVANTAGE, 0.2).mean()
    np.testing.assert_allclose(found, rlax.clipped_surrogate_pg_loss(RATIO, ADVANTAGE, 0.2), rtol=1e-6)


def test_dual_clipping_bounds_what_a_bad_action_costs_and_nothing_else():
    plain, dual = clipped_surrogate(RATIO, ADVANTAGE, 0.2), clipped_surrogate(RATIO, ADVANTAGE, 0.2, 3.0)
    np.testing.assert_array_equal(dual[:7], plain[:7])
    assert (plain[7], dual[7]) == (-10.0, -3.0)
    slopes = jax.grad(lambda ratio: clipped_surrogate(ratio, ADVANTAGE, 0.2, 3.0).sum())(RATIO)
    assert slopes[7] == 0.0  # it is bad enough: nothing is gained by making it less likely still


def test_averages_are_of_what_counts():
    x, counts = jnp.array([1.0, 2.0, jnp.nan, 6.0]), jnp.array([True, True, False, True])
    assert mean(x, counts) == 3.0
    assert mean(x, jnp.zeros(4, bool)) == 0.0
    found = standardised(x, counts)
    kept = np.array([1.0, 2.0, 6.0])
    np.testing.assert_allclose(found[counts], (kept - 3) / kept.std(), rtol=1e-6)
    assert found[2] == 0.0
    everything = x.at[2].set(0.5)
    np.testing.assert_allclose(standardised(everything), standardised(everything, jnp.ones(4, bool)), rtol=1e-5)
