"""A run that was stopped and resumed ends bit for bit where one never stopped ends."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from clocked import ENVS, Counting
from interrupts import StopAt
from paths import ROOT, SUPPORT

import runnel
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.config.run_config import RunConfig
from runnel.errors import UserError
from runnel.execution.run import Run, may_be_done
from runnel.planning.channels import MOST_SLOTS

SMALL_PPO = PPO(unroll=8, minibatches=2, epochs=2, normalise_observations=True, normalise_returns=True, hidden=(16,))
SMALL_DQN = DQN(unroll=4, min_size=64, capacity=256, batch=16, samples_per_insert=2.0, hidden=(16,), target_period=7)
GRU_PPO = PPO(unroll=8, minibatches=2, epochs=1, memory="gru", memory_size=8, hidden=(16,))

CASES = {
    "PPO, gymnax, fused": (SMALL_PPO, "gymnax:CartPole-v1", "fused"),
    "PPO, gymnax, inline": (SMALL_PPO, "gymnax:CartPole-v1", "inline"),
    "PPO, Gymnasium": (SMALL_PPO, "CartPole-v1", "inline"),
    "PPO with memory, Gymnasium": (GRU_PPO, "CartPole-v1", "inline"),
    "PPO, Gymnasium, frames": (SMALL_PPO, "CartPole-v1", "inline", {"frame_stack": 3}),
    "PPO, gymnax, fused, frames": (SMALL_PPO, "gymnax:CartPole-v1", "fused", {"frame_stack": 3}),
    "PPO, MuJoCo": (SMALL_PPO, "HalfCheetah-v5", "inline"),
    "DQN, gymnax, fused": (SMALL_DQN, "gymnax:CartPole-v1", "fused"),
    "DQN, Gymnasium": (SMALL_DQN, "CartPole-v1", "inline"),
    "DQN prioritised, Gymnasium": (
        DQN(**{**SMALL_DQN.__dict__, "prioritised": True}), "CartPole-v1", "inline",
    ),
}  # fmt: skip
SLOW = (
    "PPO, gymnax, inline", "PPO, Gymnasium", "DQN, gymnax, fused", "PPO with memory, Gymnasium",
    "DQN prioritised, Gymnasium", "PPO, gymnax, fused, frames",
)  # fmt: skip
PARAMETERS = [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in CASES]


def everything(run):
    """All that was learnt, as bytes."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


@pytest.mark.parametrize("case", PARAMETERS)
def test_stopped_and_resumed_equals_never_stopped(case, tmp_path):
    algorithm, environment, distribution, *settings = CASES[case]
    per_update, total = algorithm.unroll * 4, 12
    given = dict(envs=4, seed=3, env_settings=settings[0] if settings else None, quiet=True)
    whole = runnel.train(
        algorithm, environment, distribution, steps=total * per_update, run_dir=tmp_path / "whole", **given
    )
    stops = (1, 7)
    runnel.train(algorithm, environment, distribution, steps=stops[0] * per_update, run_dir=tmp_path / "parts", **given)
    for stop in (*stops[1:], total):
        last = runnel.resume(tmp_path / "parts", steps=stop * per_update, quiet=True)
    assert everything(last) == everything(whole)
    assert last.result["env_steps"] == whole.result["env_steps"] == total * per_update
    for key in ("updates", "episodes", "mean_return"):
        assert last.result[key] == whole.result[key]


def test_the_same_command_twice_gives_the_same_bits_and_another_seed_others(tmp_path):
    first, again, other = (
        runnel.train(SMALL_PPO, "CartPole-v1", envs=4, steps=320, seed=seed, run_dir=tmp_path / name, quiet=True)
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert everything(first) == everything(again)
    assert everything(first) != everything(other)


@pytest.fixture(scope="module")
def _checkpointed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("checkpointed") / "run"
    runnel.train(SMALL_PPO, "CartPole-v1", envs=4, steps=64, run_dir=run_dir, quiet=True)
    runnel.resume(run_dir, steps=128, quiet=True)
    return run_dir


@pytest.fixture
def checkpointed(_checkpointed, tmp_path):
    """A run directory with two checkpoints, for each test a copy of its own."""
    return Path(shutil.copytree(_checkpointed, tmp_path / "run", symlinks=True))


def damage(checkpoint):
    """Flips bits in the largest file of a checkpoint."""
    victim = max((p for p in (checkpoint / "state").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(bytes(data))


def test_a_damaged_checkpoint_is_passed_over_and_said_so(checkpointed, capsys):
    newest = sorted(p for p in (checkpointed / "checkpoints").iterdir() if p.name.isdigit())[-1]
    damage(newest)
    run = runnel.resume(checkpointed, steps=160)
    assert run.result["env_steps"] == 160
    assert f"checkpoint {newest.name} is not whole" in capsys.readouterr().out


def test_a_checkpoint_cut_short_is_passed_over(checkpointed):
    newest = sorted(p for p in (checkpointed / "checkpoints").iterdir() if p.name.isdigit())[-1]
    (newest / "manifest.json").unlink()
    assert runnel.resume(checkpointed, steps=160, quiet=True).result["env_steps"] == 160


def test_with_no_whole_checkpoint_nothing_is_changed(checkpointed):
    for checkpoint in (p for p in (checkpointed / "checkpoints").iterdir() if p.name.isdigit()):
        damage(checkpoint)
    before = (checkpointed / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match="none of the 2 checkpoints"):
        runnel.resume(checkpointed, steps=160, quiet=True)
    assert (checkpointed / "metrics.jsonl").read_bytes() == before


def test_few_checkpoints_are_kept_and_latest_is_the_newest(tmp_path):
    run_dir = tmp_path / "run"
    runnel.train(SMALL_DQN, "CartPole-v1", envs=4, steps=16, run_dir=run_dir, quiet=True)
    for steps in range(32, 80, 16):
        runnel.resume(run_dir, steps=steps, quiet=True)
    kept = sorted(p.name for p in (run_dir / "checkpoints").iterdir() if p.name.isdigit())
    assert [int(name) for name in kept] == [2, 3, 4]
    assert (run_dir / "checkpoints" / "latest").resolve().name == kept[-1]
    assert [(run_dir / "checkpoints" / name / "replay").exists() for name in kept] == [False, False, True]


def test_another_network_is_refused_in_words(checkpointed):
    config = json.loads((checkpointed / "config.json").read_text())
    config["algorithm"]["settings"]["hidden"] = [32]
    (checkpointed / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="this run expects float32"):
        runnel.resume(checkpointed, steps=256, quiet=True)


def test_fewer_steps_than_were_taken_are_refused_and_nothing_is_changed(checkpointed, capsys):
    before = {name: (checkpointed / name).read_bytes() for name in ("config.json", "result.json", "metrics.jsonl")}
    with pytest.raises(UserError, match="has taken 128 steps already"):
        runnel.resume(checkpointed, steps=64)
    assert capsys.readouterr().out == ""  # no banner of a run that does not go on
    assert {name: (checkpointed / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("distribution", ["inline", "coarse"])
def test_a_finished_run_is_returned_as_it_ended(distribution, tmp_path, capsys):
    run_dir = tmp_path / "run"
    run = runnel.train("toys:Reinforce", "toys:Corridor", distribution, envs=4, steps=64, run_dir=run_dir, quiet=True)
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    for again in (runnel.resume(run_dir), runnel.resume(run), runnel.resume(run, steps=64)):
        assert again.result == run.result
        assert everything(again) == everything(run)
        assert jax.tree.structure(again.params) == jax.tree.structure(run.params)
    assert "nothing is left to train after 64 steps; resume it with more --steps" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("result", "done"),
    [
        ({"status": "finished", "env_steps": 64}, True),
        ({"status": "finished", "env_steps": 63}, False),
        ({"status": "interrupted", "env_steps": 64}, False),
        ({"status": "finished", "env_steps": 8, "mean_return": 10}, True),
        ({"status": "finished", "env_steps": 8, "mean_return": 9.5}, False),
        ({"status": "finished", "env_steps": 8, "mean_return": "many"}, False),
        ({"status": "finished", "env_steps": "all"}, False),
        (None, False),
    ],
)
def test_a_run_has_finished_by_its_steps_or_its_return(result, done):
    assert may_be_done(result, RunConfig(steps=64, stop_at_return=10.0)) is done


def test_a_run_is_shown_in_a_line(tmp_path):
    run = Run({"status": "finished", "mean_return": 1.5, "workers": [{}] * 100}, tmp_path, {"agent": object()})
    assert repr(run) == f"Run(status='finished', mean_return=1.5, run_dir='{tmp_path}')"


def test_parameters_that_are_not_there_are_missed_in_words(tmp_path):
    with pytest.raises(UserError, match="stopped before its first checkpoint; train again"):
        _ = Run({}, tmp_path, {}).params
    with pytest.raises(UserError, match=r"2 groups \(a, b\); use run\.states"):
        _ = Run({}, tmp_path, {"a": 1, "b": 2}).params


SESSION = """
import sys, runnel
from dataclasses import dataclass
from gymnasium.envs.classic_control import CartPoleEnv
from toys import Reinforce

@dataclass(frozen=True)
class Mine(Reinforce):
    bonus: float = 0.0

class Pole(CartPoleEnv):
    pass

run = runnel.train(Mine(unroll=8, bonus=1.5), Pole, envs=2, steps=32, run_dir=sys.argv[1], quiet=True)
assert runnel.resume(sys.argv[1], quiet=True).result == run.result
again = runnel.resume(sys.argv[1], steps=48, quiet=True)
assert (again.result["env_steps"], again.built.algorithm) == (48, Mine(unroll=8, bonus=1.5)), again
from runnel.evaluation.evaluate import evaluate
print(evaluate(sys.argv[1], 2)["episodes"])
"""


def test_classes_of_an_interactive_session_are_found_again_in_it(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{SUPPORT}"}
    command = [sys.executable, "-", str(tmp_path / "run")]
    ended = subprocess.run(command, input=SESSION, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "2\n"), ended.stderr
    with pytest.raises(UserError, match="this run uses class Mine, which no other process can import"):
        runnel.resume(tmp_path / "run")


def test_an_asynchronous_run_that_is_stopped_discards_unrolls_in_flight_and_learns_from_none_twice(tmp_path):
    stopped = runnel.train(
        Counting(), "clocked:Clocked", "async", envs=ENVS, steps=10**6, run_dir=tmp_path / "run", quiet=True,
        sinks=[StopAt(100)],
    )  # fmt: skip
    resumed = runnel.resume(tmp_path / "run", steps=stopped.result["env_steps"] + 80, quiet=True)
    before, after = (np.asarray(run.states["agent"].seen) for run in (stopped, resumed))
    for run, seen in ((stopped, before), (resumed, after)):
        assert seen.max() == 1
        assert seen.sum() == run.result["env_steps"], "only what is learnt from is counted"
    for was, now in zip(before, after, strict=True):
        learnt = int(was.sum())
        assert was[:learnt].all(), "up to the stop, nothing is lost"
        lost = np.flatnonzero(now[learnt:])[0]
        assert lost <= MOST_SLOTS * Counting.unroll
        assert now[learnt + lost : learnt + lost + now.sum() - learnt].all(), "nor after it"
