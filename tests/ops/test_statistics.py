"""Running statistics equal those of everything seen."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel.observations import parted
from runnel.ops import statistics
from runnel.types import Box, Discrete


def test_batches_add_up_to_the_whole():
    values = np.random.default_rng(0).normal(5.0, 3.0, (3, 40, 7, 2)).astype(np.float32)
    found = statistics.initial_statistics((2,))
    for batch in values:
        found = statistics.update_statistics(found, jnp.asarray(batch))
    everything = values.reshape(-1, 2)
    np.testing.assert_allclose(found.count, len(everything), rtol=1e-5)
    np.testing.assert_allclose(found.mean, everything.mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.variance, everything.var(0), rtol=1e-3)


def test_what_inactive_agents_see_does_not_count():
    rng = np.random.default_rng(1)
    seen, state = rng.normal(5.0, 3.0, (9, 4, 2)).astype(np.float32), rng.normal(size=(9, 4, 3)).astype(np.float32)
    active = rng.random((9, 4)) < 0.4
    shown = np.where(active[..., None], seen, np.nan)  # whatever it is
    space = parted(Box((2,)), active=Box((), np.dtype(np.bool_), 0, 1), state=Box((3,)))
    known = statistics.observation_statistics(space)
    batch = parted(jnp.asarray(shown), active=jnp.asarray(active), state=jnp.asarray(state))
    _, of_seen, of_state = statistics.update_observation_statistics(known, batch)
    np.testing.assert_allclose(of_seen.count, active.sum(), rtol=1e-4)
    np.testing.assert_allclose(of_seen.mean, seen[active].mean(0), rtol=1e-3)
    np.testing.assert_allclose(of_seen.variance, seen[active].var(0), rtol=1e-2)
    np.testing.assert_allclose(of_state.mean, state.mean((0, 1)), rtol=1e-3, atol=1e-4)
    _, same, _ = statistics.update_observation_statistics(
        known, parted(jnp.asarray(shown), active=jnp.zeros((9, 4), bool), state=jnp.asarray(state))
    )
    np.testing.assert_array_equal(same.mean, 0.0)
    np.testing.assert_array_equal(same.variance, 1.0)


def test_only_real_numbers_are_normalised():
    space = {"image": Box((4, 4), np.dtype(np.uint8), 0, 255), "number": Box((2,)), "which": Discrete(3)}
    known = statistics.observation_statistics(space)
    observation = {
        "image": jnp.ones((4, 4), jnp.uint8),
        "number": jnp.array([10.0, 30.0]),
        "which": jnp.int32(2),
    }
    batch = jax.tree.map(lambda x: jnp.stack([x, x])[None], observation)
    batch["number"] = jnp.array([[[8.0, 28.0], [12.0, 28.0]]])
    found = statistics.normalise(statistics.update_observation_statistics(known, batch), observation)
    assert found["image"].dtype == jnp.uint8
    assert found["which"] == 2
    np.testing.assert_allclose(found["number"], [0.0, 10.0], atol=0.02)  # the second is far out, and clipped


def test_dtype_follows_jax():
    with jax.enable_x64(True):
        known = statistics.update_statistics(statistics.initial_statistics((2,)), jnp.ones((3, 4, 2), jnp.float32))
        assert {leaf.dtype for leaf in jax.tree.leaves(known)} == {jnp.dtype(jnp.float64)}
