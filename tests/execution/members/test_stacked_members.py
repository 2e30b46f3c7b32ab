"""Very many members: one checkpoint for all of them, and any of them as a run of its own."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from paths import ROOT

import runnel
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.execution.members import stacked_members, stacked_run
from runnel.execution.members.stacked_evaluations import StackedEvaluations
from runnel.execution.members.stacked_run import StackedRun
from runnel.recording import stack_logs, stacks
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.events import read_events
from runnel.reporting.bands import read_bands

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
PER_ITERATION = 8 * 4
MEMBERS = 6
STEPS = 8 * PER_ITERATION
EVALUATED = {"eval_every": 4 * PER_ITERATION, "eval_episodes": 2}


def command(*words: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runnel", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def parameters(directory: Path) -> list[np.ndarray]:
    policy: Any = runnel.load(directory)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy.params)]


def close(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in zip(a, b, strict=True))


@pytest.fixture(autouse=True)
def _few_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.execution.members.training.STACKED_ABOVE", 3)


def train(directory: Path, seeds: Any = MEMBERS, **given: Any) -> runnel.Members:
    asked = {"envs": 4, "steps": STEPS, "quiet": True, **given}
    return runnel.train_members(SMALL, TASK, seeds=seeds, run_dir=directory, **asked)


@pytest.fixture(scope="module")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("runnel.execution.members.training.STACKED_ABOVE", 3)
        return train(tmp_path_factory.mktemp("stacked") / "all", **EVALUATED).run_dir


@pytest.fixture
def stacked(_trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(_trained, tmp_path / "all", symlinks=True))


def arrays(directory: Path) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(directory)
    newest = checkpoints.newest()
    assert newest is not None
    return checkpoints.read(newest)


def test_they_have_one_checkpoint_and_each_has_a_result(stacked: Path) -> None:
    assert [path.name for path in sorted(stacked.glob("*/checkpoints"))] == ["checkpoints"]
    assert stacks.read(stacked, MEMBERS) == [[0, 1, 2, 3, 4, 5]]
    seed = arrays(stacked / "stack-0")["['carry'].seed"]
    np.testing.assert_array_equal(seed, range(MEMBERS))
    result = json.loads((stacked / "result.json").read_text())
    assert (result["status"], result["finished"], result["env_steps"]) == ("finished", MEMBERS, MEMBERS * STEPS)
    for k in range(MEMBERS):
        own = json.loads((stacked / f"member-{k}" / "result.json").read_text())
        assert (own["status"], own["seed"], own["env_steps"]) == ("finished", k, STEPS)
        assert own["evaluation"]["mean_return"] == result["runs"][k]["return"]


def test_a_member_is_the_run_of_its_seed(stacked: Path, tmp_path: Path) -> None:
    run = runnel.train(SMALL, TASK, seed=4, envs=4, steps=STEPS, run_dir=tmp_path / "run", quiet=True, **EVALUATED)
    policy: Any = runnel.load(stacked, member=4)
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)
    assert close(parameters(stacked / "member-4"), parameters(run.run_dir))
    assert not close(parameters(stacked / "member-4"), parameters(_unstacked(stacked, 3)))
    own = json.loads((stacked / "member-4" / "result.json").read_text())
    assert own["evaluation"] == run.result["evaluation"]
    assert own["mean_return"] == pytest.approx(run.result["mean_return"])


def _unstacked(directory: Path, member: int) -> Path:
    runnel.load(directory, member=member)
    return directory / f"member-{member}"


def test_a_member_goes_on_alone(stacked: Path, tmp_path: Path) -> None:
    again = runnel.resume(_unstacked(stacked, 2), steps=12 * PER_ITERATION, quiet=True)
    whole = runnel.train(
        SMALL, TASK, seed=2, envs=4, steps=12 * PER_ITERATION, run_dir=tmp_path / "run", quiet=True, **EVALUATED
    )
    assert close(parameters(again.run_dir), parameters(whole.run_dir))
    runnel.load(stacked, member=2)  # what it trained by itself stays
    assert arrays(again.run_dir)["['carry'].iteration"] == 12


@pytest.mark.slow
def test_more_steps_continue_all_as_if_they_had_not_stopped(stacked: Path, tmp_path: Path) -> None:
    runnel.load(stacked, member=1)  # an older checkpoint of its own is replaced
    again = runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)
    whole = train(tmp_path / "whole", steps=12 * PER_ITERATION, **EVALUATED)
    assert again.result["env_steps"] == whole.result["env_steps"]
    assert [r["return"] for r in again.result["runs"]] == [r["return"] for r in whole.result["runs"]]
    expected = arrays(whole.run_dir / "stack-0")
    for name, array in arrays(stacked / "stack-0").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    logged = [[(line["env_steps"], line["returns"]) for line in stack_logs.read_evaluations(path / "stack-0")]
              for path in (stacked, whole.run_dir)]  # fmt: skip
    assert [at for at, _ in logged[0]] == [0, 4 * PER_ITERATION, 8 * PER_ITERATION, 12 * PER_ITERATION]
    assert logged[0] == logged[1]
    for k in range(MEMBERS):
        found, complete = (
            json.loads((path / f"member-{k}" / "result.json").read_text()) for path in (stacked, whole.run_dir)
        )
        assert all(found[name] == complete[name] for name in ("evaluation", "best", "highest_eval_return"))
    for name in (stack_logs.EVALUATIONS, stack_logs.RETURNS):
        found, complete = (stack_logs.read_curves(path / "stack-0", name)[5] for path in (stacked, whole.run_dir))
        assert found[0][-1] == complete[0][-1]
        assert found[1][-1] == complete[1][-1]
    assert close(parameters(_unstacked(stacked, 1)), parameters(_unstacked(whole.run_dir, 1)))


def test_interrupted_members_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called, call = threading.Event(), StackedRun.call

    def stop_after_one(self: StackedRun) -> None:
        call(self)
        if not called.is_set():
            called.set()
            self.stopped = True

    monkeypatch.setattr(StackedRun, "call", stop_after_one)
    part = train(tmp_path / "part")
    assert [run["status"] for run in part.result["runs"]] == ["interrupted"] * MEMBERS
    assert part.result["runs"][0]["env_steps"] == PER_ITERATION
    again = runnel.resume_members(part.run_dir, quiet=True)
    assert (again.result["status"], again.result["env_steps"]) == ("finished", MEMBERS * STEPS)
    expected = arrays(train(tmp_path / "whole").run_dir / "stack-0")
    for name, array in arrays(part.run_dir / "stack-0").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.slow
def test_members_that_end_early_keep_the_state_of_that_moment(tmp_path: Path) -> None:
    variants = [{}, {"learning_rate": 1e30}, {"learning_rate": 1e-3}]
    ends = {"stop_at_return": 23.0, "steps": 100 * PER_ITERATION, "eval_every": 10**6, "eval_episodes": 2}
    found = train(tmp_path / "all", [1, 2], variants=variants, **ends)
    statuses = [run["status"] for run in found.result["runs"]]
    assert statuses[2:4] == ["failed", "failed"]
    assert set(statuses[:2] + statuses[4:]) == {"finished"}
    assert "not finite" in found.result["runs"][2]["reason"]
    for k, (seed, rate) in enumerate([(1, 3e-4), (2, 3e-4), (1, 1e30), (2, 1e30), (1, 1e-3), (2, 1e-3)]):
        if (seed, rate) not in ((2, 3e-4), (1, 1e-3)):
            continue
        alone = runnel.train(
            SMALL, TASK, seed=seed, envs=4, quiet=True, settings={"learning_rate": rate}, **ends,
            run_dir=tmp_path / f"alone-{k}",
        )  # fmt: skip
        own = json.loads((found.members[k] / "result.json").read_text())
        assert own["env_steps"] == own["evaluation"]["env_steps"] == alone.result["env_steps"]
        assert own["evaluation"] == alone.result["evaluation"]
        assert close(parameters(found.members[k]), parameters(alone.run_dir))
    failed = (found.members[2] / "result.json").read_bytes()
    more = 110 * PER_ITERATION
    again = runnel.resume_members(found.run_dir, steps=more, quiet=True)  # all go on, from checkpoints of their own
    assert [run["env_steps"] for run in again.result["runs"] if run["status"] == "finished"] == [more] * 4
    kept = json.loads((found.members[2] / "result.json").read_text())
    assert kept["status"] == "failed"
    assert kept["env_steps"] >= json.loads(failed)["env_steps"] > 0


@pytest.mark.slow
def test_more_than_fit_are_several_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_members, "that_fit", lambda program, members, parallel_calls, devices: 4)
    found = train(tmp_path / "all")
    assert stacks.read(found.run_dir, MEMBERS) == [[0, 1, 2], [3, 4, 5]]
    assert (found.result["status"], found.result["finished"]) == ("finished", MEMBERS)
    assert close(parameters(_unstacked(found.run_dir, 4)), parameters(train(tmp_path / "few", [4]).members[0]))


def test_a_stack_on_a_full_disk_goes_on_once_there_is_room(
    stacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as one that had room."""

    def full(*given: Any) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(stacked_run.Checkpoints, "save", full)
        found = train(tmp_path / "full", **EVALUATED)
    assert found.result["status"] == "failed"
    assert "No space left" in found.result["runs"][0]["reason"]
    assert "checkpoint_failed" in [event["event"] for event in read_events(found.run_dir / "stack-0")]
    again = runnel.resume_members(found.run_dir, quiet=True)
    assert (again.result["status"], again.result["env_steps"]) == ("finished", MEMBERS * STEPS)
    expected = arrays(stacked / "stack-0")
    for name, array in arrays(found.run_dir / "stack-0").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("waits", [False, True])
def test_an_evaluation_that_fails_ends_those_that_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    play = StackedEvaluations.play

    def last_fails(self: StackedEvaluations, rows: Any, states: Any, env_steps: int) -> Any:
        if env_steps == STEPS:
            raise RuntimeError("no more episodes")
        return play(self, rows, states, env_steps)

    monkeypatch.setattr(StackedEvaluations, "play", last_fails)
    found = train(tmp_path / "all", **{**EVALUATED, "eval_wait": waits})
    assert {run["status"] for run in found.result["runs"]} == {"failed" if waits else "finished"}
    assert not waits or "no more episodes" in found.result["runs"][0]["reason"]
    assert "evaluation_failed" in [event["event"] for event in read_events(found.run_dir / "stack-0")]
    assert int(arrays(found.run_dir / "stack-0")["['carry'].iteration"]) * PER_ITERATION == STEPS


def test_their_curves_are_drawn(stacked: Path) -> None:
    for metric in ("mean_return", "eval/return"):
        (band,) = read_bands(stacked, metric)
        assert band.line.env_steps[-1] == STEPS
        assert (band.low <= band.line.values).all()
    with pytest.raises(UserError, match=r"keeps mean_return and eval/return of its members"):
        read_bands(stacked, "learn/entropy")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"keep_every": 64}, "keep_every="),
        ({"on_nan": "rollback"}, "on_nan=rollback"),
        ({"init_from": "x"}, "init_from="),
    ],
)
def test_what_needs_a_session_of_its_own_is_refused(given: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{expected}.*found it for more than 64 members"):
        train(tmp_path / "all", **given)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stacks": 3}', '{"stacks": [[0, 1]]}', '{"stacks": [[0, 0, 1, 2, 3, 4]]}',
             '{"stacks": [["a"]]}', '{"stacks": [[0, 1, 2, 3, 4, 5.0]]}', '{"stacks": [[], [0, 1, 2, 3, 4, 5]]}'],
)  # fmt: skip
def test_stacks_that_no_training_writes_are_refused(text: str, stacked: Path) -> None:
    (stacked / "stacks.json").write_text(text)
    with pytest.raises(UserError, match=r"stacks\.json"):
        runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)


@pytest.mark.parametrize("damage", [{"members": [0]}, {"rows": "x"}, {"ended": [1.5]}, {"members": [0] * 6}])
def test_counters_that_no_stack_writes_are_refused(damage: dict[str, Any], stacked: Path) -> None:
    checkpoints = Checkpoints(stacked / "stack-0")
    newest = checkpoints.newest()
    assert newest is not None
    counters = {**checkpoints.counters(newest), **damage}
    checkpoints.save_named(int(newest.name), checkpoints.read(newest), {}, counters)
    before = (stacked / "member-0" / "result.json").read_bytes()
    found = runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)
    assert found.result["status"] == "finished"  # from before: nothing was trained, and nothing was lost
    assert (stacked / "member-0" / "result.json").read_bytes() == before
    assert "cannot be read" in read_events(stacked / "stack-0")[-1]["reason"]


def test_a_damaged_checkpoint_is_passed_over(stacked: Path) -> None:
    runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)
    checkpoints = Checkpoints(stacked / "stack-0")
    newest = checkpoints.newest()
    assert newest is not None
    expected = arrays(stacked / "stack-0")
    (newest / "counters.json").write_text("{}")
    again = runnel.resume_members(stacked, steps=13 * PER_ITERATION, quiet=True)
    assert again.result["env_steps"] == MEMBERS * 13 * PER_ITERATION
    assert any("trying the one before it" in event["reason"] for event in read_events(stacked / "stack-0"))
    assert expected["['carry'].iteration"] == 12


def test_checkpoints_that_are_gone_are_no_reason_to_begin_again(stacked: Path) -> None:
    shutil.rmtree(stacked / "stack-0" / "checkpoints")
    before = (stacked / "member-0" / "result.json").read_bytes()
    runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)
    assert (stacked / "member-0" / "result.json").read_bytes() == before


def test_a_stack_that_is_a_link_is_not_followed(stacked: Path, tmp_path: Path) -> None:
    (stacked / "stack-0").rename(tmp_path / "outside")
    (stacked / "stack-0").symlink_to(tmp_path / "outside")
    before = sorted(tmp_path.glob("outside/**/*"))
    with pytest.raises(UserError):
        runnel.resume_members(stacked, steps=12 * PER_ITERATION, quiet=True)
    assert sorted(tmp_path.glob("outside/**/*")) == before


def test_a_member_is_named_by_its_path_too(stacked: Path) -> None:
    policy: Any = runnel.load(stacked / "member-5")
    assert policy.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_killed_command_goes_on_bitwise(tmp_path: Path) -> None:
    steps = 3_000 * PER_ITERATION

    def begin(run_dir: Path) -> subprocess.Popen[str]:
        words = ["train", "ppo", TASK, "--seeds", 66, "--envs", 4, "--steps", steps, "--run-dir", run_dir, "--set",
                 "unroll=8", "minibatches=2", "epochs=1", "hidden=(8,)", "--checkpoint-every", 0.2]  # fmt: skip
        return command(*words)

    whole = begin(tmp_path / "whole")
    out, _ = whole.communicate(timeout=500)
    assert whole.returncode == 0, out
    killed = begin(tmp_path / "killed")
    checkpoints, deadline = Checkpoints(tmp_path / "killed" / "stack-0"), time.monotonic() + 300
    for _ in range(3):
        before = checkpoints.newest()
        while checkpoints.newest() == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        killed.kill()
        killed.communicate()
        newest = checkpoints.newest()
        assert newest is not None
        assert int(newest.name) < 3_000, "it was killed too late"
        killed = command("resume", tmp_path / "killed")
    out, _ = killed.communicate(timeout=500)
    assert killed.returncode == 0, out
    expected = arrays(tmp_path / "whole" / "stack-0")
    for name, array in arrays(tmp_path / "killed" / "stack-0").items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
