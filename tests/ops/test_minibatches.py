"""Minibatches: every step once per epoch, an equal share of every block, and gathers that stay inside blocks."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from runnel.errors import UserError
from runnel.ops.column_blocks import (
    ColumnBlocks,
    column_block_count,
    column_block_layout,
    divisors,
    envs_for,
    learners_in_words,
)
from runnel.ops.minibatches import cut, cuts_of


def minibatches(key, batch, count, sequences):
    """All minibatches of an epoch, `[count, ...]`."""
    parts = cut(batch, count, sequences)
    return jax.vmap(parts.take)(parts.orders(key))


def numbered(steps, columns):
    """[T, B] each step's own number."""
    return jnp.arange(steps * columns).reshape(steps, columns)


@hypothesis_settings(deadline=None, max_examples=6)
@given(steps=st.integers(1, 12), columns=st.integers(1, 48), count=st.integers(1, 6), whole=st.booleans())
def test_every_step_once_in_an_epoch_and_alike_from_every_block(steps, columns, count, whole):
    try:
        blocks, by_column = column_block_layout(steps, columns, count, whole)
    except UserError:
        assert (columns if whole else steps * columns) % count
        return
    parts = minibatches(jax.random.key(0), numbered(steps, columns), count, whole)
    assert parts.shape[0] == count
    assert parts[0].size == steps * columns // count
    np.testing.assert_array_equal(np.sort(np.ravel(parts)), np.arange(steps * columns))
    block_of = np.asarray(parts) % columns // (columns // blocks)
    for part in block_of:
        assert np.ptp(np.bincount(part.ravel(), minlength=blocks)) == 0
    if whole:  # a column's steps stay together and in order
        np.testing.assert_array_equal(np.diff(parts, axis=1), columns)
    assert by_column or not whole


def test_leaves_stay_together():
    batch = {"number": numbered(6, 8), "double": 2 * numbered(6, 8)[..., None]}
    parts = minibatches(jax.random.key(0), batch, 3, False)
    np.testing.assert_array_equal(2 * parts["number"], parts["double"][..., 0])


def test_what_a_column_has_once_goes_with_it():
    batch = (numbered(4, 8), jnp.arange(8)[None, :, None])
    steps, memory = minibatches(jax.random.key(1), batch, 4, True)
    assert memory.shape == (4, 1, 2, 1)
    np.testing.assert_array_equal(steps[:, 0] % 8, memory[:, 0, :, 0])


def test_order_is_random_and_follows_the_key():
    one, same, other = (minibatches(jax.random.key(k), numbered(16, 8), 4, False) for k in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("steps", "columns", "count", "whole", "wanted"),
    [
        (128, 64, 4, False, (16, True)),  # enough columns: each block gives one to each minibatch
        (128, 256, 4, False, (64, True)),
        (128, 8, 4, False, (8, False)),  # too few columns for a good sample: single steps
        (128, 24, 4, False, (24, False)),
        (128, 8, 4, True, (2, True)),  # whole columns asked for
        (128, 60, 4, True, (15, True)),
        (128, 66, 4, False, (66, False)),  # 66 columns do not divide by 4
        (128, 1, 4, False, (1, False)),
        (128, 4, 1, False, (4, True)),  # nothing to divide
        (3, 8, 4, False, (2, False)),  # 3 steps do not divide by 4, those of 4 columns do
    ],
)
def test_block_layout(steps, columns, count, whole, wanted):
    assert column_block_layout(steps, columns, count, whole) == wanted


def test_impossible_sizes_say_what_to_do():
    with pytest.raises(UserError, match=r"4 minibatches of whole sequences cannot be cut from 6 environments; use"):
        column_block_layout(128, 6, 4, True)
    with pytest.raises(UserError, match=r"7 minibatches cannot be cut evenly from 128 steps of 8 environments; make"):
        column_block_layout(128, 8, 7, False)


SIZES = dict(
    steps=st.integers(1, 12), envs=st.integers(1, 48), agents=st.sampled_from([1, 2, 3]), count=st.integers(1, 6),
    whole=st.booleans(), learners=st.integers(1, 12),
)  # fmt: skip


@given(**SIZES)
def test_so_many_learners_can_share_every_multiple_of_the_environments_proposed(
    steps, envs, agents, count, whole, learners
):
    def blocks(envs):
        made, _ = column_block_layout(steps, envs * agents, count, whole)
        return column_block_count(envs, [ColumnBlocks(envs * agents, count, made)])

    try:
        made, _ = column_block_layout(steps, envs * agents, count, whole)
    except UserError:
        return
    least = envs_for(learners, envs, [ColumnBlocks(envs * agents, count, made)])
    assert all(blocks(k * least) % learners == 0 for k in (1, 2, 3))
    if blocks(envs) % learners == 0:  # whatever divides is neither too large nor too small a part of the columns
        assert envs % learners == 0
        assert made % learners == 0


def test_learners_that_work_are_listed_or_those_around():
    assert learners_in_words(divisors(1)) == "1"
    assert learners_in_words(divisors(12)) == "1, 2, 3, 4, 6 or 12"
    assert learners_in_words(divisors(16384), 48) == "16, 32, 64 or 128 (or another divisor of 16384)"


@pytest.mark.parametrize("jitted", [False, True])
def test_how_a_batch_was_cut_is_found_in_what_was_traced(jitted):
    """Also where JAX does not call the function again, because it has traced it before."""

    def learn(x):
        def once(total, key):
            parts = cut({"x": x, "sum": total * jnp.ones((1, 64))}, 4, sequences=True)
            return total + jax.value_and_grad(lambda y: parts.take(parts.orders(key)[0])["x"].sum() * y)(2.0)[0], None

        return (
            jax.lax.scan(once, 0.0, jax.random.split(jax.random.key(0), 3))[0]
            + minibatches(jax.random.key(0), x, 8, False).sum()
        )

    learn = jax.jit(learn) if jitted else learn
    x = jax.ShapeDtypeStruct((16, 64), jnp.float32)
    for _ in range(2):
        assert set(cuts_of(jax.make_jaxpr(learn)(x))) == {ColumnBlocks(64, 4, 16), ColumnBlocks(64, 8, 8)}


@pytest.mark.parametrize("columns", [8, 64])
def test_nothing_is_gathered_across_devices(columns):
    """Compiled for 8 devices, with the columns spread over them, minibatches need no communication at all."""
    script = f"""
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from runnel.ops.minibatches import cut
mesh = Mesh(jax.devices(), ("columns",))
x = jax.ShapeDtypeStruct((16, {columns}, 5), jnp.float32, sharding=NamedSharding(mesh, P(None, "columns")))
key = jax.eval_shape(lambda: jax.random.key(0))
def first(key, x):
    parts = cut(x, 4, False)
    return parts.take(parts.orders(key)[0])
f = jax.jit(first, out_shardings=NamedSharding(mesh, P("columns")))
text = f.lower(key, x).compile().as_text()
found = [word for word in ("all-gather", "all-to-all", "collective-permute", "all-reduce") if word in text]
assert len(jax.devices()) == 8 and not found, found
"""
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
