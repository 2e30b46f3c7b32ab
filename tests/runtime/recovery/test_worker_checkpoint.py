"""A checkpoint split for the workers of any plan, and joined again, is the same checkpoint."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from checkpoints import agents_of, random_saved, topology_of
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Corridor, Drift, Tag

from runnel.environment import is_traceable
from runnel.execution.building import BuiltRun, build
from runnel.planning.channels import Topology
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.recovery.action_history import unpack
from runnel.runtime.single_process.program import carry_types

ENVS = 12

RUNS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "host environments, memory": ("ppo", "CartPole-v1", {"memory": "gru", "minibatches": 1}),
    "host environments, replay": ("dqn", "CartPole-v1", {"capacity": 256, "min_size": 64, "batch": 32}),
    "JAX environments, memory": ("impala", Corridor(), {"memory": "lstm"}),
    "JAX environments, groups": (Drift(), Tag(), {}),
}

PLANS: dict[str, dict[str, Any]] = {
    "coarse, 2 workers": {"distribution": "coarse", "actors": 2},
    "coarse, 3 workers": {"distribution": "coarse", "actors": 3},
    "fine, 4 workers": {"distribution": "fine", "actors": 4},
    "decoupled, 2 workers of 3 blocks": {"distribution": "decoupled", "actors": 2, "env_splits": 3},
    "async, 12 workers": {"distribution": "async", "actors": 12},
}


class Case(NamedTuple):
    """A run under one plan."""

    built: BuiltRun
    topology: Topology
    types: Any  # of the carry

    def split(self, saved: dict[str, Any]) -> dict[str, np.ndarray]:
        return worker_checkpoint.split(saved, self.topology, agents_of(self.built))

    def join(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        host = not is_traceable(self.built.environment)
        return worker_checkpoint.join(arrays, self.types, self.topology, host)


@functools.cache
def case(run: str, plan: str) -> Case:
    algorithm, environment, options = RUNS[run]
    built = build(algorithm, environment, envs=ENVS, settings=options, **PLANS[plan])
    return Case(built, topology_of(built), carry_types(built.graph, built.environment))


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, one), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path)
        assert np.asarray(one).dtype == np.asarray(other).dtype, name
        np.testing.assert_array_equal(one, other, err_msg=name)


runs, plans = st.sampled_from(sorted(RUNS)), st.sampled_from(sorted(PLANS))
seeds = st.integers(0, 2**32 - 1)


def test_the_parts_of_a_replay_that_learners_saved_are_joined() -> None:
    """In whichever order they arrive; each learner has saved what all of them have in common as well."""
    this = case("host environments, replay", "coarse, 2 workers")
    saved = random_saved(this.built, 3)
    arrays = this.split(saved)
    large = [name for name, array in arrays.items() if names.replay_node(name) and 256 in array.shape[:2]]
    assert len(large) > 1
    for name in large:
        whole = arrays.pop(name)
        axis = whole.shape.index(256)
        for k in (3, 0, 2, 1):
            arrays[names.part(name, 64 * k)] = np.take(whole, range(64 * k, 64 * (k + 1)), axis)
    assert_same(this.join(arrays), saved)


@settings(max_examples=30, deadline=None)
@given(run=runs, plan=plans, seed=seeds)
def test_join_undoes_split(run: str, plan: str, seed: int) -> None:
    this = case(run, plan)
    saved = random_saved(this.built, seed)
    assert_same(this.join(this.split(saved)), saved)


@settings(max_examples=30, deadline=None)
@given(run=runs, before=plans, after=plans, seed=seeds)
def test_parts_of_one_plan_become_parts_of_another_and_come_back(run: str, before: str, after: str, seed: int) -> None:
    one, other = case(run, before), case(run, after)
    parts = one.split(random_saved(one.built, seed))
    between = other.split(one.join(parts))
    assert_same(one.split(other.join(between)), parts)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("run", RUNS)
def test_every_environment_is_in_one_block_and_has_its_own_rows(run: str, plan: str) -> None:
    this = case(run, plan)
    saved = random_saved(this.built)
    parts, running = this.split(saved), saved["carry"].running
    assert [env for block in this.topology.blocks for env in block.envs] == list(range(ENVS))
    for block in this.topology.blocks:
        length = parts[names.block(block.number, names.LENGTH)]
        np.testing.assert_array_equal(length, running.length[block.start : block.stop])
        for group, agents in agents_of(this.built).items():
            columns = slice(block.start * agents, block.stop * agents)
            discounted = parts[names.block(block.number, names.discounted(group))]
            np.testing.assert_array_equal(discounted, saved["carry"].actors.discounted_sum[group][columns])


def test_a_block_gets_the_actions_of_its_own_episodes() -> None:
    this = case("host environments, memory", "coarse, 3 workers")
    saved = random_saved(this.built, seed=5)
    parts = this.split(saved)
    packed = {name: array for name, array in saved["host"].items() if name != "cut"}
    whole = unpack(packed)
    for block in this.topology.blocks:
        own = {name: parts[names.block(block.number, names.host(name))] for name in packed}
        for found, expected in zip(unpack(own), whole[block.start : block.stop], strict=True):
            assert found.number == expected.number
            np.testing.assert_array_equal(found.actions["agent"], expected.actions["agent"])


def test_counters_of_episodes_that_were_cut_begin_at_0() -> None:
    this = case("host environments, memory", "coarse, 2 workers")
    saved = random_saved(this.built, seed=3, cut=True)
    cut = saved["host"]["cut"]
    assert cut.any()
    assert not cut.all()
    again = this.join(this.split(saved))
    assert not again["host"]["cut"].any(), "they are cut once"
    before, after = saved["carry"], again["carry"]
    np.testing.assert_array_equal(after.running.length, np.where(cut, 0, before.running.length))
    np.testing.assert_array_equal(after.running.reward["agent"], np.where(cut, 0, before.running.reward["agent"]))
    sums = before.actors.discounted_sum["agent"]
    np.testing.assert_array_equal(after.actors.discounted_sum["agent"], np.where(cut, 0, sums))


def test_what_a_worker_did_not_save_is_zero_after_a_join() -> None:
    """A policy without memory saves none; a field that no block has is zeros of the carry's type."""
    this = case("JAX environments, groups", "coarse, 2 workers")
    parts = this.split(random_saved(this.built))
    field = names.reward("hunter")
    without = {name: array for name, array in parts.items() if not name.endswith(f".{field}")}
    joined = this.join(without)["carry"]
    np.testing.assert_array_equal(joined.running.reward["hunter"], np.zeros(ENVS))
    np.testing.assert_array_equal(joined.running.reward["runners"], this.join(parts)["carry"].running.reward["runners"])
