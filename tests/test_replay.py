"""Replay kinds as pure functions: what is kept, what is drawn, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay


def filled(replay, batches, batch=8):
    """A replay after these insertions."""
    state = replay.init(batches[0], batch)
    for items in batches:
        state = replay.add(state, items, batch)
    return state


def drawn(replay, state, times=200, batch=8):
    keys = jax.random.split(jax.random.key(0), times)
    return jax.jit(jax.vmap(lambda key: replay.sample(state, key, batch)))(keys)


def test_uniform_keeps_the_newest_and_draws_them_alike():
    replay = UniformReplay(8)
    state = filled(replay, [jnp.arange(i, i + 4) for i in (0, 4, 8)])
    counts = np.bincount(np.ravel(drawn(replay, state)), minlength=12)
    assert (counts[:4] == 0).all()  # pushed out
    np.testing.assert_allclose(counts[4:] / counts.sum(), 1 / 8, atol=0.03)


def test_uniform_draws_nothing_that_was_not_inserted():
    replay = UniformReplay(100)
    state = filled(replay, [jnp.arange(1, 5)])
    assert set(np.unique(drawn(replay, state))) == {1, 2, 3, 4}


def test_items_are_trees():
    replay = UniformReplay(16)
    items = {"a": jnp.arange(4), "b": 2.0 * jnp.arange(4)[:, None]}
    batch = replay.sample(filled(replay, [items], 5), jax.random.key(0), 5)
    assert batch["b"].shape == (5, 1)
    np.testing.assert_array_equal(batch["b"][:, 0], 2 * batch["a"])


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_prioritised_draws_in_proportion(exponent):
    replay = PrioritisedReplay(8, exponent)
    state = filled(replay, [jnp.arange(4)])
    sample = replay.sample(state, jax.random.key(0), 8)
    state = replay.update(state, sample, 1.0 + 3.0 * (sample.items == 2), 8)
    weights = np.array([1.0, 1.0, 4.0, 1.0]) ** exponent
    after = drawn(replay, state)
    found = np.bincount(np.ravel(after.items), minlength=4) / after.items.size
    np.testing.assert_allclose(found, weights / weights.sum(), atol=0.04)
    wanted = (weights / weights.sum())[np.ravel(after.items)]
    np.testing.assert_allclose(np.ravel(after.probability), wanted, rtol=1e-3)


def test_new_items_have_the_highest_priority_seen():
    replay = PrioritisedReplay(8, 1.0)
    state = filled(replay, [jnp.arange(4)])
    sample = replay.sample(state, jax.random.key(0), 8)
    state = replay.update(state, sample, jnp.where(sample.items == 2, 9.0, 0.1), 8)
    state = replay.add(state, jnp.array([7]), 8)
    counts = np.bincount(np.ravel(drawn(replay, state).items), minlength=8) / (200 * 8)
    np.testing.assert_allclose(counts[[2, 7]], 9 / 18.3, atol=0.04)


def test_prioritised_draws_nothing_that_was_not_inserted():
    """Though rounding may make the whole a little more than its parts: here, much more."""
    replay = PrioritisedReplay(8)
    state = filled(replay, [jnp.arange(1, 5)])
    tree = state.sum_tree_state
    rounded = state.replace(sum_tree_state=tree.replace(nodes=tree.nodes.at[0].mul(1.5)))
    after = drawn(replay, rounded)
    assert set(np.unique(after.items)) == {1, 2, 3, 4}
    assert (after.probability > 0).all()


def test_sequences_are_windows_of_one_column():
    replay = SequenceReplay(16, 3)
    steps = jnp.arange(12)[:, None] + 100 * jnp.arange(2)  # [T, B]
    windows = drawn(replay, filled(replay, [steps[:6], steps[6:]], 8), batch=8)  # [times, length, batch]
    assert windows.shape == (200, 3, 8)
    np.testing.assert_array_equal(np.diff(windows, axis=1), 1)
    assert len(np.unique(windows[:, 0] // 100)) == 2


def test_sequences_begin_at_multiples_of_the_period():
    replay = SequenceReplay(16, 4, period=4)
    windows = drawn(replay, filled(replay, [jnp.arange(16)[:, None]], 8), batch=8)
    assert set(np.unique(windows[:, 0])) <= {0, 4, 8, 12}


def test_counts_and_costs_are_in_items_or_steps():
    items = jnp.zeros((5, 3))
    assert (UniformReplay(8).count(items), UniformReplay(8).cost(4)) == (5, 4)
    assert (SequenceReplay(8, 3).count(items), SequenceReplay(8, 3).cost(4)) == (15, 12)
    assert UniformReplay(8).room(items) == PrioritisedReplay(8).room(items) == 8
    assert SequenceReplay(8, 3).room(items) == 24  # its capacity is that of each column
