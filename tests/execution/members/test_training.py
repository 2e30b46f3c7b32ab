"""Several runs by one command."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from kinds import Kinds
from left_behind import until_left
from paths import ROOT

import runnel
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.execution.members import fused_members, member_group
from runnel.execution.members.member_group import MemberGroup
from runnel.execution.members.member_memory import side_by_side
from runnel.execution.members.processes import on_cluster
from runnel.execution.members.training import chosen_seeds
from runnel.execution.run import read_result
from runnel.planning.machine import Machine
from runnel.recording import members_file, provenance
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.events import read_events
from runnel.reporting.live_view import LiveView

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
PER_ITERATION = 8 * 4


def parameters(directory: Path) -> list[np.ndarray]:
    policy: Any = runnel.load(directory)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(policy.params)]


def close(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(np.allclose(x, y, rtol=1e-3, atol=1e-4) for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> runnel.Members:
    return runnel.train_members(
        SMALL, TASK, seeds=3, seed=5, envs=4, steps=8 * PER_ITERATION, eval_every=4 * PER_ITERATION, eval_episodes=2,
        run_dir=tmp_path_factory.mktemp("members") / "all", quiet=True, keep_every=PER_ITERATION,
    )  # fmt: skip


def test_every_member_is_a_run_of_its_own(members: runnel.Members) -> None:
    assert [path.name for path in members.members] == ["member-0", "member-1", "member-2"]
    for path, seed in zip(members.members, (5, 6, 7), strict=True):
        result = json.loads((path / "result.json").read_text())
        assert (result["status"], result["seed"], result["env_steps"]) == ("finished", seed, 8 * PER_ITERATION)
        assert json.loads((path / "config.json").read_text())["seed"] == seed
        evaluated = [json.loads(line)["env_steps"] for line in (path / "evaluations.jsonl").read_text().splitlines()]
        assert evaluated == [0, 4 * PER_ITERATION, 8 * PER_ITERATION]
        assert len(runnel.policies(path).query()) >= 8
        policy: Any = runnel.load(path, "best")
        assert policy.act(np.zeros(4, np.float32)) in (0, 1)


def test_a_member_is_the_run_of_its_seed(members: runnel.Members, tmp_path: Path) -> None:
    run = runnel.train(
        SMALL, TASK, seed=6, envs=4, steps=8 * PER_ITERATION, eval_every=4 * PER_ITERATION, eval_episodes=2,
        run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert close(parameters(members.members[1]), parameters(run.run_dir))
    assert not close(parameters(members.members[0]), parameters(run.run_dir))
    assert run.result["evaluation"] == json.loads((members.members[1] / "result.json").read_text())["evaluation"]


def test_the_result_is_of_all_members(members: runnel.Members) -> None:
    result = json.loads((members.run_dir / "result.json").read_text())
    returns = [run["return"] for run in result["runs"]]
    assert (result["status"], result["members"], result["finished"]) == ("finished", 3, 3)
    assert result["env_steps"] == 3 * 8 * PER_ITERATION
    assert result["median_return"] == np.median(returns)
    assert result["iqm_interval"][0] <= result["iqm_return"] <= result["iqm_interval"][1]
    assert [run["seed"] for run in result["runs"]] == [5, 6, 7]


def test_more_steps_continue_every_member(members: runnel.Members, tmp_path: Path) -> None:
    whole = runnel.train_members(
        SMALL, TASK, seeds=[5, 6], envs=4, steps=12 * PER_ITERATION, run_dir=tmp_path / "whole", quiet=True
    )
    part = runnel.train_members(
        SMALL, TASK, seeds=[5, 6], envs=4, steps=7 * PER_ITERATION, run_dir=tmp_path / "parts", quiet=True
    )
    again = runnel.resume_members(part.run_dir, steps=12 * PER_ITERATION, quiet=True)
    assert again.result["env_steps"] == 2 * 12 * PER_ITERATION
    for a, b in zip(whole.members, again.members, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(parameters(a), parameters(b), strict=True))
    before = (part.run_dir / "result.json").read_bytes()
    assert runnel.resume_members(part.run_dir, quiet=True).result == again.result
    assert (part.run_dir / "result.json").read_bytes() == before
    assert len(provenance.read(part.run_dir)) == 2  # nothing was left for the third to train


def test_a_member_that_goes_on_after_the_others_trains_as_with_them(tmp_path: Path) -> None:
    """Bit for bit: calls keep their size, whichever members have ended."""
    asked = {"seeds": 3, "envs": 4, "run_dir": tmp_path / "all", "quiet": True}
    found = runnel.train_members(SMALL, TASK, steps=4 * PER_ITERATION, **asked)
    shutil.copytree(found.members[1], tmp_path / "early")
    runnel.resume_members(found.run_dir, steps=9 * PER_ITERATION, quiet=True)
    expected = parameters(found.members[1])
    shutil.rmtree(found.members[1])
    shutil.move(tmp_path / "early", found.members[1])
    again = runnel.resume_members(found.run_dir, steps=9 * PER_ITERATION, quiet=True)
    assert again.result["env_steps"] == 3 * 9 * PER_ITERATION
    assert all(np.array_equal(x, y) for x, y in zip(parameters(found.members[1]), expected, strict=True))


def test_a_member_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    found = runnel.train_members(
        SMALL, TASK, seeds=[1], variants=[{}, {"learning_rate": 1e30}, {"learning_rate": 1e-3}], envs=4,
        steps=8 * PER_ITERATION, run_dir=tmp_path / "all", quiet=True,
    )  # fmt: skip
    assert [run["status"] for run in found.result["runs"]] == ["finished", "failed", "finished"]
    assert "not finite" in found.result["runs"][1]["reason"]
    assert (found.result["status"], found.result["finished"]) == ("failed", 2)
    assert [event["event"] for event in read_events(found.members[1])].count("nan") == 1
    alone = runnel.train(
        SMALL, TASK, seed=1, envs=4, steps=8 * PER_ITERATION, settings={"learning_rate": 1e-3},
        run_dir=tmp_path / "alone", quiet=True,
    )  # fmt: skip
    assert close(parameters(found.members[2]), parameters(alone.run_dir))


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The settings that are arguments of each program that was made."""
    made, make = [], fused_members.cohort_program

    def noted(built: Any, traced: Any) -> Any:
        made.append(tuple(traced))
        return make(built, traced)

    monkeypatch.setattr(fused_members, "cohort_program", noted)
    return made


KINDS = [{"extra": 1.0, "kind": "a"}, {"extra": 2.0, "kind": "a"}, {"extra": 3.0, "kind": "b"},
         {"extra": 4.0, "kind": "b"}]  # fmt: skip


@pytest.mark.parametrize("order", [(0, 1, 2, 3), pytest.param((2, 0, 3, 1), marks=pytest.mark.slow)])
def test_members_for_which_python_needs_a_float_do_not_decide_for_the_others(
    tmp_path: Path, programs: list[Any], monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(LiveView, "note", lambda self, text: said.append(text))
    asked: dict[str, Any] = {"envs": 4, "steps": 4 * PER_ITERATION, "quiet": True}
    found = runnel.train_members(
        Kinds, TASK, seeds=[3], variants=[KINDS[k] for k in order], run_dir=tmp_path / "all", **asked
    )
    assert [run["status"] for run in found.result["runs"]] == ["finished"] * 4
    assert sorted(programs) == [(), (), ("extra",)]
    (note,) = (text for text in said if "programs" in text)
    assert note.startswith("3 programs, one after another, for settings that are fixed: ")
    assert re.search(r"extra: Python code needs its value .* in 2 of 3 programs", note)
    for k in order[1:2]:
        run = runnel.train(Kinds, TASK, seed=3, settings=KINDS[k], run_dir=tmp_path / f"alone-{k}", **asked)
        assert close(parameters(found.members[order.index(k)]), parameters(run.run_dir))


def test_an_optional_float_that_some_members_leave_out_costs_one_more_program(
    tmp_path: Path, programs: list[Any]
) -> None:
    found = runnel.train_members(
        Kinds, TASK, seeds=[3], variants=[{"weight": weight} for weight in (None, 1.0, 2.0, 3.0)], envs=4,
        steps=2 * PER_ITERATION, run_dir=tmp_path / "all", quiet=True,
    )  # fmt: skip
    assert found.result["finished"] == 4
    assert programs == [(), ("weight",)]
    first, same, *others = map(parameters, found.members)
    assert close(first, same)  # a weight of 1
    assert not any(close(first, other) for other in others)


def test_a_result_is_read_again_only_where_it_has_changed(
    members: runnel.Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands of members that do not train now, and they are looked at several times a second."""
    shutil.copytree(members.run_dir, tmp_path / "all")
    group = MemberGroup(tmp_path / "all", True, 0.0, "local", None)
    read: list[Path] = []
    monkeypatch.setattr(member_group, "read_result", lambda path: read.append(path) or read_result(path))
    shown: list[dict[str, Any]] = []
    view: Any = SimpleNamespace(update=shown.append)
    for _ in range(3):
        group.show(view)
    assert len(read) == 3
    path = tmp_path / "all" / "member-1" / "result.json"
    path.write_text(json.dumps({"status": "finished", "env_steps": 10**6, "mean_return": 9.0}))
    group.show(view)
    assert read[3:] == [path.parent]
    assert [each["env_steps"] for each in shown] == [24 * PER_ITERATION] * 3 + [10**6 + 16 * PER_ITERATION]
    assert len(shown[0]["return_quartiles"]) == 2


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (0, "one seed or more"),
        ([], "one seed or more"),
        ([1, 1], "twice"),
        ([1, -1], "found -1"),
        (True, "a number of seeds"),
        ("3", "a number of seeds"),
        ([1.5], "whole numbers"),
        (3, "found 4294967296"),
    ],
)
def test_seeds_that_no_members_can_have_are_refused(seeds: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        chosen_seeds(seeds, 2**32 - 2)


def test_what_belongs_to_one_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"on_update=.*several members"):
        runnel.train_members(SMALL, TASK, seeds=2, on_update=lambda progress: None, run_dir=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_as_many_run_side_by_side_as_there_are_cores() -> None:
    machine = Machine(cpus=8, devices=("cpu:0",))
    assert side_by_side(runnel.build(SMALL, "CartPole-v1", "inline"), machine, 16)[0] == 8
    assert side_by_side(runnel.build(SMALL, "CartPole-v1", "inline"), machine, 3)[0] == 3
    assert side_by_side(runnel.build(SMALL, "CartPole-v1", "coarse", envs=6, actors=3), machine, 16)[0] == 2


@pytest.mark.parametrize(
    ("workers", "cpus", "members", "expected"),
    [
        (4, [4], 8, (1, None)),
        (4, [8], 8, (2, 4)),
        (4, [4, 4], 8, (2, 2)),
        (3, [4, 4, 4, 4], 8, (4, 1)),
        (3, [4, 4, 4, 4], 2, (2, 1)),
        (5, [2, 2], 3, (1, None)),
        (2, [], 3, (1, None)),
    ],
)
def test_as_many_run_side_by_side_as_a_cluster_holds(
    workers: int, cpus: list[int], members: int, expected: tuple[int, int | None]
) -> None:
    found = on_cluster(workers, cpus, members)
    assert found == expected
    at_a_time, share = found
    if share is not None:  # what is left after the others is enough for the last
        left = [free - share * min(at_a_time - 1, free // share) for free in cpus]
        assert sum(min(share, free) for free in left) >= workers


def test_members_of_other_distributions_have_processes(tmp_path: Path) -> None:
    found = runnel.train_members(
        SMALL, "CartPole-v1", "inline", seeds=2, envs=4, steps=4 * PER_ITERATION, run_dir=tmp_path / "all", quiet=True
    )
    assert found.result["finished"] == 2, found.result
    for path in found.members:
        assert json.loads((path / "result.json").read_text())["env_steps"] == 4 * PER_ITERATION


SCRIPT = """
from dataclasses import dataclass
from pathlib import Path

import runnel
from runnel.algorithms.ppo import PPO

@dataclass(frozen=True)
class Mine(PPO):
    pass

print("begun", flush=True)
small = Mine(unroll=8, minibatches=2, epochs=1, hidden=(8,))
found = runnel.train_members(small, "CartPole-v1", "inline", seeds=2, envs=4, steps=64, run_dir=Path("all"), quiet=True)
print(found.result["finished"], flush=True)
"""


@pytest.mark.slow
def test_a_script_needs_no_guard_around_its_training(tmp_path: Path) -> None:
    """Processes of members load the class from the script, up to where it would train."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip
    logs = [path.read_text() for path in (tmp_path / "all" / "logs").iterdir()]
    assert done.stdout.splitlines() == ["begun", "2"], (done.stderr, logs)


# Interrupted and killed


FILE_LIMIT = 3_000
"""Bytes of a file: less than a checkpoint has, more than the files of a run have that begins."""


def command(*words: Any, limit: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runnel", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


TASKS = {"fused": TASK, "inline": "CartPole-v1"}


def begin(run_dir: Path, steps: int, distribution: str = "fused", limit: int | None = None) -> subprocess.Popen[str]:
    return command(
        "train", "ppo", TASKS[distribution], "--distribution", distribution, "--seeds", 3, "--envs", 4, "--steps",
        steps, "--set", "unroll=8", "minibatches=2", "epochs=1", "hidden=(8,)", "--run-dir", run_dir,
        "--checkpoint-every", 0.2, limit=limit,
    )  # fmt: skip


def saved(directory: Path) -> str:
    newest = Checkpoints(directory).newest()
    return "-1" if newest is None else newest.name


def stored(directory: Path) -> dict[str, np.ndarray]:
    (newest,) = runnel.policies(directory).query(tag="latest")
    return newest.arrays()


def until_saved(run_dir: Path, members: int = 3, least: int = 1) -> None:
    deadline = time.monotonic() + 200
    while True:
        found = [Checkpoints(run_dir / members_file.name_of(k, 3)).newest() for k in range(members)]
        if all(path is not None and int(path.name) >= least for path in found):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
@pytest.mark.parametrize(("distribution", "iterations"), [("fused", 8_000), ("inline", 3_000)])
def test_members_that_were_stopped_end_with_the_same_training(
    tmp_path: Path, number: signal.Signals, distribution: str, iterations: int
) -> None:
    """In processes, the third member has not begun then on two cores."""
    steps, begun = iterations * PER_ITERATION, 3 if distribution == "fused" else 1
    whole = begin(tmp_path / "whole", steps, distribution)
    out, _ = whole.communicate(timeout=600)
    assert whole.returncode == 0, out
    process = begin(tmp_path / "stopped", steps, distribution)
    until_saved(tmp_path / "stopped", begun)
    process.send_signal(number)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == (0 if number == signal.SIGINT else -signal.SIGKILL), out
    until_left(tmp_path / "stopped")
    left = [iterations - int(saved(tmp_path / "stopped" / f"member-{k}")) for k in range(begun)]
    assert min(left) > 0, "it was stopped too late"
    again = command("resume", tmp_path / "stopped", "--steps", steps)
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    for k in range(3):
        whole_arrays, arrays = (stored(tmp_path / name / f"member-{k}") for name in ("whole", "stopped"))
        assert whole_arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, whole_arrays[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_members_in_processes_on_a_full_disk_go_on_once_there_is_room(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole", 20 * PER_ITERATION, "inline")
    full = begin(tmp_path / "full", 20 * PER_ITERATION, "inline", FILE_LIMIT)
    for process, status in ((whole, 0), (full, 1)):
        out, _ = process.communicate(timeout=300)
        assert process.returncode == status, out
    result = json.loads((tmp_path / "full" / "result.json").read_text())
    assert [run["status"] for run in result["runs"]] == ["failed"] * 3
    assert "File too large" in result["runs"][0]["reason"]
    again = command("resume", tmp_path / "full")
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    for k in range(3):
        whole_arrays, arrays = (stored(tmp_path / name / f"member-{k}") for name in ("whole", "full"))
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, whole_arrays[name], err_msg=name)


def test_members_on_a_full_disk_go_on_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Checkpoints.save

    def full(self: Checkpoints, *args: Any) -> Path:
        if self.run_dir.name == "member-1":
            raise OSError(28, "No space left on device")
        return save(self, *args)

    monkeypatch.setattr(Checkpoints, "save", full)
    found = runnel.train_members(
        SMALL, TASK, seeds=3, envs=4, steps=8 * PER_ITERATION, run_dir=tmp_path / "all", quiet=True
    )
    assert [run["status"] for run in found.result["runs"]] == ["finished", "failed", "finished"]
    assert "No space left on device" in found.result["runs"][1]["reason"]
    monkeypatch.setattr(Checkpoints, "save", save)
    again = runnel.resume_members(found.run_dir, quiet=True)
    assert (again.result["status"], again.result["env_steps"]) == ("finished", 3 * 8 * PER_ITERATION)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_processes_of_members_end_with_the_command(tmp_path: Path) -> None:
    process = begin(tmp_path / "all", 10_000_000, "inline")
    until_saved(tmp_path / "all", members=1)
    process.kill()
    process.communicate()
    until_left(tmp_path)
    taken = max(int(saved(tmp_path / "all" / f"member-{k}")) for k in range(3))
    again = command("resume", tmp_path / "all", "--steps", (taken + 200) * PER_ITERATION)
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    assert json.loads((tmp_path / "all" / "result.json").read_text())["finished"] == 3
