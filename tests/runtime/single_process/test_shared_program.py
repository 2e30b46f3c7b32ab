"""Members of one program train as each would alone."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen
from paths import SUPPORT

from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.execution.building import build
from runnel.execution.members.fused_members import side_calls
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.programs.traced_settings import separate, values_of, with_settings
from runnel.runtime.single_process.cohort import CohortProgram, parts, try_members
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.shared_program import SharedProgram

ENVS = 4
SEEDS = (0, 7, 3)
SMALL_PPO = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))


class Convolution(linen.Module):
    """A network with a convolution, for observations on a grid."""

    @linen.compact
    def __call__(self, grid: Any) -> Any:
        return jax.numpy.ravel(linen.relu(linen.Conv(4, (3, 3))(grid.astype(jax.numpy.float32))))


CONVOLUTIONAL = PPO(unroll=4, minibatches=1, epochs=1, network=Convolution())
SMALL_DQN = DQN(unroll=4, min_size=16, capacity=128, batch=8, samples_per_insert=0.5, hidden=(8,), target_period=3)


@cache
def cohort_program(
    algorithm: Any, names: tuple[str, ...], environment: str = "gymnax:CartPole-v1"
) -> tuple[CohortProgram, int]:
    """Compiled once for each number of members that tests need of it."""
    built = build(algorithm, environment, "fused", ENVS)

    def make_loop(values: Any) -> Loop:
        graph = built.graph
        if values:
            graph = trace(with_settings(built.algorithm, values), graph.spec, ENVS)
        return Loop(graph, built.environment)  # type: ignore[arg-type]

    return CohortProgram(make_loop, jax.devices()[:1], names), built.graph.steps_per_iteration


def shared_program(
    members: list[Any], names: tuple[str, ...] = (), seeds: Any = SEEDS, parallel_calls: int = 1
) -> SharedProgram:
    program, per_iteration = cohort_program(members[0], names)
    return SharedProgram(
        program, per_iteration, seeds, values_of(members, names), SnapshotSchedule((64,)), parallel_calls
    )


@cache
def single_program(algorithm: Any) -> CompiledProgram:
    built = build(algorithm, "gymnax:CartPole-v1", "fused", ENVS)
    return CompiledProgram(Loop(built.graph, built.environment), jax.devices()[:1], 0)  # type: ignore[arg-type]


def alone(algorithm: Any, seed: int, iterations: int) -> Any:
    program = single_program(algorithm)
    program.seed = jax.numpy.uint32(seed)
    program.carry = program.fresh()
    done = 0
    while done < iterations:
        done += program.run(iterations - done, 0.1, math.inf, lambda: False).iterations
    return jax.tree.map(np.array, program.carry)


def together(shared: SharedProgram, iterations: list[int]) -> list[Any]:
    """Every member's carry after `iterations` iterations, each in its own thread."""

    def train(member: int) -> Any:
        view, done = shared.views[member], shared.iteration(member)
        while done < iterations[member]:
            done += view.run(iterations[member] - done, 0.1, math.inf, lambda: False).iterations
        carry = view.carry
        view.close()
        return carry

    with ThreadPoolExecutor(len(iterations)) as threads:
        return list(threads.map(train, range(len(iterations))))


def assert_close(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", [SMALL_PPO, SMALL_DQN], ids=["ppo", "dqn"])
def test_a_member_trains_as_it_would_alone(algorithm: Any) -> None:
    found = together(shared_program([algorithm] * 3), [5, 5, 5])
    for carry, seed in zip(found, SEEDS, strict=True):
        assert_close(carry, alone(algorithm, seed, 5))


def test_settings_of_members_differ_in_one_program() -> None:
    other = dataclasses.replace(SMALL_PPO, learning_rate=1e-2, discount=0.5, entropy_cost=0.1)
    members = [SMALL_PPO, other]
    shared = shared_program(members, ("learning_rate", "discount", "entropy_cost"), (1, 1))
    for carry, algorithm in zip(together(shared, [4, 4]), members, strict=True):
        assert_close(carry.states, alone(algorithm, 1, 4).states)


def test_members_may_end_at_different_iterations() -> None:
    found = together(shared_program([SMALL_PPO] * 3), [2, 6, 4])
    for carry, seed, iterations in zip(found, SEEDS, [2, 6, 4], strict=True):
        assert int(carry.iteration) == iterations
        assert_close(carry.states, alone(SMALL_PPO, seed, iterations).states)


def test_a_member_that_goes_back_catches_up_with_the_others() -> None:
    shared = shared_program([SMALL_PPO] * 3)
    early = alone(SMALL_PPO, SEEDS[1], 2)
    shared.views[1].load({"carry": jax.device_get(early), "host": {}}, 64)
    assert [shared.iteration(member) for member in range(3)] == [0, 2, 0]
    for carry, seed in zip(together(shared, [5, 5, 5]), SEEDS, strict=True):
        assert_close(carry.states, alone(SMALL_PPO, seed, 5).states)


def test_members_may_train_in_several_calls_side_by_side() -> None:
    seeds = (*SEEDS, 11, 12, 13)
    shared = shared_program([SMALL_PPO] * 6, seeds=seeds, parallel_calls=2)
    shared.views[4].load({"carry": jax.device_get(alone(SMALL_PPO, 12, 2)), "host": {}}, 64)
    for carry, seed in zip(together(shared, [5, 5, 5, 3, 5, 5]), seeds, strict=True):
        assert_close(carry.states, alone(SMALL_PPO, seed, int(carry.iteration)).states)


@pytest.mark.parametrize(("members", "most", "expected"), [(8, 2, 2), (7, 2, 1), (6, 4, 3), (3, 8, 3), (1, 8, 1)])
def test_members_are_divided_into_equal_parts(members: int, most: int, expected: int) -> None:
    assert parts(members, most) == expected


@pytest.mark.parametrize(("members", "devices", "expected"), [(7, 4, 8), (5, 4, 6), (3, 4, 3), (8, 4, 8), (7, 1, 7)])
def test_calls_over_several_devices_have_as_many_rows_on_each(members: int, devices: int, expected: int) -> None:
    program, _ = cohort_program(SMALL_PPO, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "devices", jax.devices()[:1] * devices)
        assert program.call_size(members) == expected


def test_members_with_convolutions_have_calls_of_their_own_on_a_cpu() -> None:
    """Stacked kernels are far slower there; the training is the same."""
    program, per_iteration = cohort_program(CONVOLUTIONAL, (), "gymnax:Breakout-MinAtar")
    assert (program.one_each, program.call_size(6, 2)) == (True, 1)
    assert side_calls(program, jax.devices()[:1]) == 1
    assert not cohort_program(SMALL_PPO, ())[0].one_each
    shared = SharedProgram(program, per_iteration, SEEDS, {}, SnapshotSchedule(()))
    found = together(shared, [3, 3, 2])
    assert program.compiled.keys() == {1}
    stacked, _ = program.run(program.fresh(SEEDS, {}), {}, 3, np.full(3, np.inf))
    for member in (0, 1):
        assert_close(found[member].states, jax.tree.map(lambda x, k=member: x[k], stacked.states))
    assert [int(carry.iteration) for carry in found] == [3, 3, 2]


def test_a_member_that_waits_ends_when_it_is_asked_to() -> None:
    shared = shared_program([SMALL_PPO] * 3)
    progress = shared.views[0].run(10, 0.1, math.inf, lambda: True)  # the others never ask
    assert (progress.iterations, progress.updates) == (0, 0)


def test_a_call_goes_on_over_updates_that_are_refused_for_members_that_skip_them() -> None:
    """Else a single member that diverges would end each call of all others after an iteration."""
    diverging = dataclasses.replace(SMALL_PPO, learning_rate=1e30)
    program, _ = cohort_program(SMALL_PPO, ("learning_rate",))
    settings = values_of([SMALL_PPO, diverging], ("learning_rate",))
    wanted = np.full(2, np.inf)
    for skips, goes_on in (((False, False), False), ((True, False), False), ((False, True), True)):
        _, called = program.run(program.fresh((0, 1), settings), settings, 6, wanted, np.array(skips))
        refused = sum(tally.counts.sum(axis=1) for tally in called.totals.broken.values())
        assert (called.iterations == 6) == goes_on
        assert refused[0] == 0 < refused[1]


def test_each_member_takes_its_own_snapshots() -> None:
    shared = shared_program([SMALL_PPO] * 3)
    together(shared, [4, 4, 4])  # 32 steps each
    taken = [view.snapshots(wait=True) for view in shared.views]
    assert [[snapshot.env_steps for snapshot in each] for each in taken] == [[0, 64, 128]] * 3
    first, second = (each[-1].arrays["agent"] for each in taken[:2])
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_counts_that_members_share_are_not_stacked() -> None:
    """Loops over batches of a replay would otherwise select over all that they carry, the replay included."""
    built = build(SMALL_DQN, "gymnax:CartPole-v1", "fused", ENVS)
    program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices()[:1])  # type: ignore[arg-type]
    carry = program.fresh([0, 1, 2], {})
    (replay,) = carry.replays.values()
    assert (replay.credit.shape, replay.inserted.shape, carry.iteration.shape) == ((), (), ())
    assert replay.items.current_index.shape == ()
    assert jax.tree.leaves(replay.items.experience)[0].shape[0] == 3


def test_a_setting_that_decides_how_often_members_learn_is_fixed() -> None:
    built = build(SMALL_DQN, "gymnax:CartPole-v1", "fused", ENVS)

    def make_loop(algorithm: Any) -> Loop:
        return Loop(trace(algorithm, built.graph.spec, ENVS), built.environment)  # type: ignore[arg-type]

    others = {"samples_per_insert": 0.25, "learning_rate": 1e-2}
    members = [SMALL_DQN, *(dataclasses.replace(SMALL_DQN, **{name: value}) for name, value in others.items())]
    found = separate(members, lambda make, names: try_members(lambda values: make_loop(make(values)), names))
    assert found.traced == ("learning_rate",)
    assert found.fixed == {
        "samples_per_insert": "how often members learn, or how full their replays are, depends on it"
    }
    assert [program.members for program in found.programs] == [(0, 2), (1,)]


@pytest.mark.slow
def test_members_are_spread_over_all_devices(tmp_path: Path) -> None:
    """Seven members on four devices: an extra row fills the last. In float64, each equals the member trained alone."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "spread_members.py"), str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["devices"], found["rows"]) == (4, 8)
    assert found["gaps"] == [pytest.approx(0.0, abs=1e-8)] * 7
    for name in ("sessions", "stack"):
        assert found[name] == ["finished", pytest.approx(found["expected"], abs=1e-6)]
