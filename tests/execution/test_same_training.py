"""Synchronous distributions compute the same training, whatever the number of workers.

Float64, to 1e-8 after 5 updates; float32, to 1e-4 on CartPole. The same command twice, and a run that was stopped and
resumed, agree to the last bit.
"""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from gaps import beyond
from paths import SUPPORT

import runnel
from runnel.algorithms.dqn import DQN
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.distributions.coarse import Coarse
from runnel.distributions.environments import Environments
from runnel.distributions.fine import Fine
from runnel.distributions.replicated import Replicated

WAYS = (
    "inline",
    "inline, stepped from the host",
    "fused on 1",
    "fused on 2",
    "fused on 8",
    "member 0 of two, settings traced",
    "member 1 of two, settings traced",
)
ALGORITHMS = ("PPO", "PPO continuous", "PPO GRU", "DQN", "own algorithm", "groups", "joined groups")
CONTINUOUS = ("DDPG", "TD3", "SAC")
TEAMS = ("MAPPO", "VDN", "QMIX")

ALL = (
    "coarse 1", "coarse 2", "coarse 4", "fine 1", "fine 2", "fine 4", "fine 1, 2 splits", "fine 2, 2 splits",
    "replicated 1", "replicated 2", "replicated 4", "environments 1", "environments 2", "environments 4",
    "environments 2, 2 splits",
)  # fmt: skip

# Numbers of workers matter alike to every algorithm: three trainings meet them all.
SEVERAL = ("coarse 4", "fine 2, 2 splits", "replicated 2", "environments 2, 2 splits")

# The shortest list in which every distribution, kind of environment and kind of algorithm is met.
SOME = {
    "PPO GRU, host": ("fine 2, 2 splits", "replicated 2"),
    "DQN, JAX": ("fused", "coarse 2"),
}

EVERY = {
    "PPO, host": SEVERAL,
    "PPO GRU, host": ALL,
    "DQN, host": (*ALL, "store", "maps"),
    "DQN prioritised, host": ("coarse 2", "fine 2", "store", "maps"),
    "DDPG, host": ("coarse 2", "fine 2", "replicated 2"),
    "TD3, host": ("coarse 2", "fine 2, 2 splits", "replicated 2", "environments 2"),
    "SAC, host": (*SEVERAL, "store", "maps"),
    "groups, host": ("coarse 2", "fine 2", "environments 1", "environments 2", "environments 2, 2 splits", "split"),
    "PPO, JAX": ("fused", *ALL, "replicated 5"),
    "PPO GRU, JAX": ("fused", *SEVERAL),
    "DQN, JAX": ("fused", *SEVERAL, "replicated 5", "replicated 8", "store", "maps"),
    "SAC, JAX": ("fused", "coarse 2", "fine 2", "replicated 2", "environments 2", "store", "maps"),
    "groups, JAX": ("fused", *SEVERAL, "split"),
    "joined groups, host": ("coarse 2", "fine 2"),
    "joined groups, JAX": ("fused", "coarse 2", "coarse 4", "fine 2, 2 splits", "replicated 2"),
    "MAPPO, groups": ("fused", "coarse 2", "fine 2", "replicated 2", "environments 2"),
    "MAPPO GRU, groups": ("fused", "coarse 2", "environments 2"),
    "VDN, groups": ("fused", "coarse 2", "replicated 2", "environments 2"),
    "QMIX, groups": ("fused", "coarse 2", "environments 2"),
    "PPO 8 blocks, JAX": ("replicated 8",),
    "PPO GRU 8 blocks, JAX": ("replicated 8",),
    "PPO frames, host": ("coarse 2", "fine 2, 2 splits"),
    "PPO frames, JAX": ("fused", "coarse 2", "fine 2", "replicated 2"),
}


def distances(*arguments: str, timeout_s: float = 280, **environ: str) -> dict[str, float]:
    """The measurements of `tests/support/same_training.py`."""
    script = SUPPORT / "same_training.py"
    own = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(script.parent.parent), **environ}
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, env=own, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "algorithms",
    [
        ALGORITHMS[:1],
        pytest.param(ALGORITHMS[1:4], marks=pytest.mark.slow),
        pytest.param(ALGORITHMS[4:], marks=pytest.mark.slow),
        *(pytest.param((name,), marks=pytest.mark.slow) for name in (*CONTINUOUS, *TEAMS)),
    ],
    ids=", ".join,
)
def test_every_way_of_one_process_ends_with_the_same_parameters(algorithms):
    """A few tests, because one process measures all ways of an algorithm."""
    found = distances(timeout_s=800, CASES=",".join(algorithms))
    assert set(found) == {f"{algorithm}: {way}" for algorithm in algorithms for way in WAYS}
    assert beyond(found, 1e-8) == {}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "algorithm",
    [
        "A2C",
        "DQN prioritised",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("IMPALA", "REINFORCE", "C51")),
    ],
)
def test_members_with_settings_of_their_own_end_with_the_parameters_of_runs_with_these(algorithm):
    """Those of other algorithms are measured with all other ways."""
    found = distances(timeout_s=800, CASES=algorithm, ONLY_MEMBERS="1")
    assert set(found) == {f"{algorithm}: {way}" for way in WAYS if way.startswith("member")}
    assert beyond(found, 1e-8) == {}


@pytest.mark.parametrize("training", SOME)
def test_synchronous_distributions_end_with_the_same_parameters(training):
    found = distances("train", training, *SOME[training], JAX_ENABLE_X64="1")
    assert set(found) == set(SOME[training])
    assert beyond(found, 1e-8) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("training", EVERY)
def test_all_synchronous_distributions_end_with_the_same_parameters(training):
    found = distances("train", training, *EVERY[training], JAX_ENABLE_X64="1", timeout_s=1700)
    assert set(found) == set(EVERY[training])
    assert beyond(found, 1e-8) == {}


@pytest.mark.slow
def test_float64_asked_for_by_a_script_is_that_of_its_workers():
    assert beyond(distances("train-late", "DQN, host", "coarse 2", JAX_ENABLE_X64="0"), 1e-8) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("training", ["PPO, host", "DQN, host", "PPO GRU, JAX"])
def test_in_float32_they_agree_on_cartpole(training):
    ways = ("coarse 2", "coarse 4", "fine 2, 2 splits", "replicated 2", "environments 2")
    found = distances("train", training, *ways, JAX_ENABLE_X64="0", timeout_s=1700)
    assert beyond(found, 1e-4) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("training", "ways"),
    [
        ("PPO GRU, host", ("inline", "coarse 4", "fine 2, 2 splits", "environments 2", "replicated 2")),
        ("DQN prioritised, host", ("inline", "coarse 1", "fine 2", "store", "maps")),
        ("PPO, JAX", ("inline", "fused", "fine 2", "replicated 2")),
        ("DQN, JAX", ("inline", "fused", "fine 2")),
        ("SAC, host", ("inline", "coarse 4", "fine 2", "replicated 2")),
        ("groups, JAX", ("inline", "fused", "environments 2", "split")),
        ("MAPPO, groups", ("inline", "fused", "fine 2")),
    ],
)
def test_a_run_may_be_resumed_under_another_distribution(training, ways):
    found = distances("resume", training, *ways, JAX_ENABLE_X64="1", timeout_s=1700)
    assert beyond(found, 1e-8) == {}


@pytest.mark.slow
def test_a_run_in_processes_may_be_resumed_in_one():
    assert beyond(distances("resume", "groups, JAX", "inline", "fused", JAX_ENABLE_X64="1"), 1e-8) == {}


# To the last bit

PPO_SMALL = PPO(unroll=8, minibatches=2, epochs=1, normalise_observations=True, hidden=(8,))
MAPPO_SMALL = MAPPO(unroll=8, minibatches=2, epochs=1, normalise_observations=True, hidden=(8,))
DQN_SMALL = DQN(unroll=4, min_size=16, capacity=128, batch=8, samples_per_insert=0.5, hidden=(8,), target_period=3)

EXACT = {
    "coarse": (PPO_SMALL, Coarse(2)),
    "fine": (PPO_SMALL, Fine(2, env_splits=2)),
    "replicated": (PPO_SMALL, Replicated(2)),
    "replicated, central critic": (MAPPO_SMALL, Replicated(2)),
    "environments": (DQN_SMALL, Environments(2)),
    "coarse with replay": (DQN_SMALL, Coarse(2)),
    "replicated with replay": (DQN_SMALL, Replicated(2)),
}


def everything(run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


def whole_and_in_parts(algorithm, distribution, place, environment="CartPole-v1", **settings):
    """The same run twice: at a stretch, and stopped twice on its way."""
    per_iteration = algorithm.unroll * 8
    given = dict(envs=8, seed=3, quiet=True, env_settings=settings)
    whole = runnel.train(
        algorithm, environment, distribution, steps=9 * per_iteration, run_dir=place / "whole", **given
    )
    runnel.train(algorithm, environment, distribution, steps=2 * per_iteration, run_dir=place / "parts", **given)
    for stop in (3, 9):
        last = runnel.resume(place / "parts", steps=stop * per_iteration, quiet=True)
    return whole, last


def same(whole, last) -> None:
    assert everything(whole) == everything(last)
    for key in ("env_steps", "updates", "episodes", "mean_return"):
        assert whole.result[key] == last.result[key], key


def test_stopped_and_resumed_equals_never_stopped(tmp_path):
    same(*whole_and_in_parts(PPO_SMALL, Coarse(2), tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("environment", ["CartPole-v1", "gymnax:CartPole-v1"])
@pytest.mark.parametrize("case", ["coarse", "fine"])
def test_stopped_and_resumed_equals_never_stopped_with_frames(case, environment, tmp_path):
    same(*whole_and_in_parts(*EXACT[case], tmp_path, environment, frame_stack=3))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("environment", ["CartPole-v1", "gymnax:CartPole-v1"])
@pytest.mark.parametrize("case", EXACT)
def test_stopped_and_resumed_equals_never_stopped_everywhere(case, environment, tmp_path):
    same(*whole_and_in_parts(*EXACT[case], tmp_path, environment))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("environment", ["CartPole-v1", "gymnax:CartPole-v1"])
@pytest.mark.parametrize("case", EXACT)
def test_the_same_command_twice_gives_the_same_bits(case, environment, tmp_path):
    algorithm, distribution = EXACT[case]
    first, second = (
        runnel.train(
            algorithm, environment, distribution, envs=8, steps=512, seed=1, run_dir=tmp_path / name, quiet=True
        )
        for name in ("first", "second")
    )
    assert everything(first) == everything(second)
    other = runnel.train(
        algorithm, environment, distribution, envs=8, steps=512, seed=2, run_dir=tmp_path / "other", quiet=True
    )
    assert everything(other) != everything(first)
