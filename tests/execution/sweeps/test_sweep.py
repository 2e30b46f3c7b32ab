"""Sweeps: trials that Optuna proposes, trained as members of one directory."""

import contextlib
import errno
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from kinds import Kinds

import runnel
from runnel.algorithms.ppo import PPO
from runnel.cli.main import main
from runnel.errors import UserError
from runnel.execution.members import fused_members
from runnel.execution.members.training import MemberMaker
from runnel.execution.session.session import Session
from runnel.execution.sweeps import trials as sweep_trials
from runnel.execution.sweeps.driver import SweepDriver
from runnel.execution.sweeps.results import member_outcomes, objective
from runnel.execution.sweeps.sweep_spec import made_spec
from runnel.execution.sweeps.trials import TrialStore
from runnel.recording import members_file, provenance, sweep_file
from runnel.recording.files import AppendOnlyFile

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
PER_ITERATION = 8 * 4
ASKED: dict[str, Any] = {
    "over": {"learning_rate": runnel.LogUniform(1e-4, 1e-2)},
    "trials": 4, "batch": 2, "seeds": 2, "halving": 2, "winner_seeds": 4, "envs": 4, "steps": 8 * PER_ITERATION,
    "eval_episodes": 2, "quiet": True,
}  # fmt: skip


def reached(found: Path) -> dict[str, Any]:
    """The results of a sweep, without times."""
    result = json.loads((found / "result.json").read_text())
    return {name: result[name] for name in ("status", "trials", "best", "winner", "env_steps")}


PROGRAMS: list[Any] = []
"""Those that the first sweep has made."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> runnel.Sweep:
    made = fused_members.cohort_program

    def counted(*args: Any) -> Any:
        PROGRAMS.append(made(*args))
        return PROGRAMS[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fused_members, "cohort_program", counted)
        return runnel.sweep(SMALL, TASK, **ASKED, run_dir=tmp_path_factory.mktemp("sweeps") / "whole")


def test_one_program_trains_all_batches_that_differ_in_floats(swept: runnel.Sweep) -> None:
    assert swept.result["status"] == "finished"
    assert len(PROGRAMS) == 1


def test_a_sweep_finds_the_best_trial_and_trains_it_on_unseen_seeds(swept: runnel.Sweep) -> None:
    trials = swept.result["trials"]
    assert [trial["trial"] for trial in trials] == [0, 1, 2, 3]
    complete = [trial for trial in trials if trial["status"] == "complete"]
    assert swept.result["status"] == "finished"
    assert len(complete) == 2
    assert all(trial["steps"] == 4 * PER_ITERATION for trial in trials if trial["status"] == "pruned")
    assert swept.best == max(complete, key=lambda trial: trial["objective"])["settings"]
    assert swept.winner is not None
    assert [run["seed"] for run in swept.winner.result["runs"]] == [2, 3, 4, 5]
    assert all(run["env_steps"] == 8 * PER_ITERATION for run in swept.winner.result["runs"])
    config = json.loads((swept.winner.members[0] / "config.json").read_text())
    assert {name: config["algorithm"]["settings"][name] for name in swept.best} == swept.best
    assert (swept.run_dir / "sweep.svg").read_text().lstrip().startswith("<?xml")


def test_the_objective_is_the_mean_of_the_final_evaluations_of_the_seeds(swept: runnel.Sweep) -> None:
    for trial in swept.result["trials"]:
        results = [json.loads((swept.run_dir / name / "result.json").read_text()) for name in trial["members"]]
        assert [result["seed"] for result in results] == [0, 1]
        assert trial["objective"] == sum(result["evaluation"]["mean_return"] for result in results) / 2
        assert all(result["evaluation"]["env_steps"] == result["env_steps"] for result in results)


def test_the_members_of_all_trials_are_one_directory_of_members(swept: runnel.Sweep) -> None:
    members = members_file.read(swept.run_dir)
    assert [member.seed for member in members] == [0, 1] * 4
    assert [member.settings for member in members[::2]] == [trial["settings"] for trial in swept.result["trials"]]
    assert runnel.load(swept.run_dir, member=3) is not None


def test_optuna_reads_the_storage(swept: runnel.Sweep) -> None:
    backend = optuna.storages.journal.JournalFileBackend(str(swept.run_dir / "trials.jsonl"))
    study = optuna.load_study(study_name=None, storage=optuna.storages.JournalStorage(backend))
    states = {"complete": "COMPLETE", "pruned": "PRUNED"}
    for trial, row in zip(study.trials, swept.result["trials"], strict=True):
        assert (trial.params, trial.state.name) == (row["settings"], states[row["status"]])
        assert trial.value == row["objective"]
    assert study.best_trial.number == swept.result["best"]["trial"]


def test_the_best_settings_are_a_file_that_train_accepts(swept: runnel.Sweep, tmp_path: Path) -> None:
    words = ["--config", swept.run_dir / "best.json", "--steps", 2 * PER_ITERATION, "--run-dir", tmp_path / "run"]
    assert main(["train", *map(str, words), "--quiet"]) == 0
    trained = json.loads((tmp_path / "run" / "config.json").read_text())
    assert {name: trained["algorithm"]["settings"][name] for name in swept.best or {}} == swept.best


class Killed(Exception):
    """Where a process would have been killed."""


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Ends a sweep at the n-th line of its record, after half of the line."""

    def kill(line: int) -> None:
        lines = [0]

        class Cut(AppendOnlyFile):
            def write(self, data: bytes) -> None:
                lines[0] += 1
                if lines[0] == line:
                    super().write(data[:40])
                    raise Killed
                super().write(data)

        monkeypatch.setattr(sweep_trials, "AppendOnlyFile", Cut)

    yield kill
    monkeypatch.setattr(sweep_trials, "AppendOnlyFile", AppendOnlyFile)


def test_a_sweep_that_was_stopped_ends_as_one_that_was_not(
    swept: runnel.Sweep, tmp_path: Path, killed_at: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Killed at the first trial, between two trials of a batch and between their results; by Ctrl-C; by a full disk."""
    directory = tmp_path / "sweep"
    killed_at(2)
    with pytest.raises(Killed):
        runnel.sweep(SMALL, TASK, **ASKED, run_dir=directory)
    for line in (2, 2):
        killed_at(line)
        with pytest.raises(Killed):
            runnel.resume_sweep(directory, quiet=True)
    killed_at(0)
    with monkeypatch.context() as patched:
        patched.setattr(TrialStore, "add", interrupted(TrialStore.add))
        found = runnel.resume_sweep(directory)
    assert found.result["status"] == "interrupted"
    assert [trial["status"] for trial in found.result["trials"]] == ["running"] * 4
    assert [trial["objective"] is None for trial in found.result["trials"]] == [False, False, True, True]
    assert f"resume by   runnel resume {directory}" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(AppendOnlyFile, "write", full)
        assert main(["resume", str(directory)]) == 1
    printed = capsys.readouterr().out
    assert re.search("failed: sweep .* reason .*No space left on device.* resume by", printed, re.DOTALL)
    assert main(["resume", str(directory), "--quiet"]) == 0
    assert reached(directory) == reached(swept.run_dir)
    names = ("trials.jsonl", "result.json", "best.json", "winner/result.json")
    before = [(directory / name).read_bytes() for name in names]
    assert runnel.resume_sweep(directory, quiet=True).best == swept.best
    assert [(directory / name).read_bytes() for name in names] == before
    assert [len(provenance.read(each)) for each in (swept.run_dir, swept.run_dir / "winner")] == [1, 1]


def interrupted(call: Any) -> Any:
    """Ctrl-C arrives during the first call."""
    numbers = [signal.SIGINT]

    def called(*args: Any) -> Any:
        if numbers:
            os.kill(os.getpid(), numbers.pop())
        return call(*args)

    return called


def full(self: AppendOnlyFile, piece: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_link_in_the_place_of_a_directory_is_refused(swept: runnel.Sweep, tmp_path: Path) -> None:
    directory = tmp_path / "sweep"
    directory.mkdir()
    for name in ("sweep.json", "base.json"):
        (directory / name).write_bytes((swept.run_dir / name).read_bytes())
    (tmp_path / "elsewhere").mkdir()
    (directory / "member-0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="member-0"):
        runnel.resume_sweep(directory, quiet=True)
    assert not list((tmp_path / "elsewhere").iterdir())


def made_store(directory: Path, **changed: Any) -> TrialStore:
    directory.mkdir(exist_ok=True)
    spec = sweep_file.SweepSpec(
        {"a": runnel.LogUniform(1e-4, 1.0), "b": runnel.IntUniform(1, 9)},
        **({"sampler": "tpe", "trials": 30, "batch": 5, "seed": 3, "seeds": (0,), "winner_seeds": (), "eta": 2,
            "rungs": (10,)} | changed),
    )  # fmt: skip
    return TrialStore(directory, spec)


def filled(directory: Path, again: bool, **changed: Any) -> list[dict[str, Any]]:
    """The settings of 30 trials, whose objective is made of them."""
    store = made_store(directory, **changed)
    for number in range(30):
        if again:  # every trial is proposed by a process of its own
            store.close()
            store = made_store(directory, **changed)
        store.add(store.propose(number))
        if number % 5 == 4:
            for done in range(number - 4, number + 1):
                settings = store.trials()[done].settings
                store.report(done, 0, settings["b"] - abs(settings["a"] - 0.01))
                store.end(done, "complete")
    store.close()
    return [trial.settings for trial in store.trials()]


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_what_is_proposed_depends_on_the_record_alone(tmp_path: Path, sampler: str) -> None:
    found = filled(tmp_path / "once", again=False, sampler=sampler)
    assert filled(tmp_path / "again", again=True, sampler=sampler) == found
    assert filled(tmp_path / "other", again=False, sampler=sampler, seed=4) != found
    assert len({json.dumps(settings) for settings in found}) == 30
    if sampler == "tpe":  # it learns: later trials are nearer to the best
        assert sum(s["b"] for s in found[20:]) > sum(s["b"] for s in found[:10])


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"op_code":99,"worker_id":"x"}',
        b'{"op_code":4,"worker_id":"x","study_id":0,"datetime_start":null,"state":0}',
        b'{"op_code":0,"worker_id":"x","study_name":"other","directions":[1]}',
        b'{"op_code":7,"worker_id":"x","trial_id":0,"step":7,"intermediate_value":1}',
        b'{"op_code":7,"worker_id":"x","trial_id":0,"step":10,"intermediate_value":"a"}',
        b'{"op_code":6,"worker_id":"x","trial_id":0,"state":4,"values":null}',
        b'{"op_code":5,"worker_id":"x","trial_id":0,"param_name":"c","param_value_internal":1,"distribution":"{}"}',
    ],
)
def test_a_record_that_was_edited_is_refused_in_words(tmp_path: Path, line: bytes) -> None:
    store = made_store(tmp_path / "sweep")
    store.add({"a": 0.1, "b": 2})
    store.close()
    path = tmp_path / "sweep" / "trials.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match="was the file edited"):
        made_store(tmp_path / "sweep")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trials", 10**9), ("trials", "4"), ("batch", 0), ("seeds", []), ("seeds", [0, 0]), ("seeds", [-1]),
        ("winner_seeds", [0]), ("rungs", []), ("rungs", [5, 4]), ("eta", 1), ("sampler", "evil"), ("space", 3),
        ("space", {"learning_rate": {"kind": "log", "low": -1, "high": 1}}), ("format", 2), ("seed", None),
    ],
)  # fmt: skip
def test_a_specification_that_was_edited_is_refused_in_words(
    swept: runnel.Sweep, tmp_path: Path, name: str, value: Any
) -> None:  # fmt: skip
    found = json.loads((swept.run_dir / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**found, name: value}))
    (tmp_path / "base.json").write_bytes((swept.run_dir / "base.json").read_bytes())
    with pytest.raises(UserError, match=r"edited|format"):
        runnel.resume_sweep(tmp_path, quiet=True)


def test_members_that_are_not_those_of_the_trials_are_refused(swept: runnel.Sweep, tmp_path: Path) -> None:
    for name in ("sweep.json", "base.json", "trials.jsonl", "members.json"):
        (tmp_path / name).write_bytes((swept.run_dir / name).read_bytes())
    lines = (tmp_path / "trials.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "trials.jsonl").write_bytes(b"".join(lines[:3]))
    with pytest.raises(UserError, match="found other members than those of the trials"):
        runnel.resume_sweep(tmp_path, quiet=True)


def test_code_that_a_stranger_named_is_not_imported(swept: runnel.Sweep, tmp_path: Path) -> None:
    base = json.loads((swept.run_dir / "base.json").read_text())
    base["algorithm"]["class"] = "evil:Algorithm"
    (tmp_path / "base.json").write_text(json.dumps(base))
    (tmp_path / "sweep.json").write_bytes((swept.run_dir / "sweep.json").read_bytes())
    (tmp_path / "evil.py").write_text("raise SystemExit('it was imported')")
    with pytest.raises(UserError, match="names code that would be executed"):
        runnel.resume_sweep(tmp_path, quiet=True)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"over": {"learning_rat": [1]}}, "did you mean 'learning_rate'"),
        ({"over": ["env.length=1,2"]}, "found a setting of the env, expected one of the algorithm"),
        ({"over": {"minibatches": [2, 3]}}, "minibatches=3, which cannot be trained"),
        ({"sampler": "tpee"}, "did you mean 'tpe'"),
        ({"sampler": "grid"}, "expected a list of values for sampler=grid"),
        ({"batch": 5}, "batch=5: found 5, expected 1 to 4"),
        ({"trials": 4000}, "members in all"),
        ({"rungs": 9}, "too few for 9 rungs"),
        ({"halving": None, "rungs": 2}, "without halving="),
        ({"stop_at_return": 3.0}, "stop_at_return=: found it for a sweep"),
        ({"winner_seeds": -1}, "winner_seeds=-1"),
        ({"settings": {"learning_rate": 1e-3}}, "over=learning_rate: found it among the settings for all trials too"),
        ({"envs": 64}, "expected each rung to have more iterations than the one before"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(tmp_path: Path, asked: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        runnel.sweep(SMALL, TASK, **{**ASKED, **asked}, run_dir=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_settings_that_do_not_fit_together_are_not_proposed(tmp_path: Path) -> None:
    maker = MemberMaker.of(SMALL, TASK, None, {"envs": 4})
    over = {"minibatches": [2, 64], "unroll": [16, 8]}  # an unroll of 8 has 32 samples
    asked: dict[str, Any] = {"trials": 16, "sampler": "random", "batch": 16, "seeds": 1, "winner_seeds": 0}
    spec = made_spec(PPO, over, maker.run, halving=None, rungs=None, **asked)
    driver = SweepDriver(tmp_path, spec, maker, 0.0, True, "local", None)
    with contextlib.closing(TrialStore(tmp_path, spec)) as store:
        wrong = {"minibatches": 64, "unroll": 8}
        assert wrong in [store.propose(number) for number in range(16)]
        assert wrong not in [driver.proposed(store, number) for number in range(16)]


def test_a_trial_whose_training_fails_is_the_worst(tmp_path: Path) -> None:
    found = runnel.sweep(
        SMALL, TASK, over={"learning_rate": [1e30, 1e-3]}, sampler="grid", seeds=1, winner_seeds=0, envs=4,
        steps=4 * PER_ITERATION, run_dir=tmp_path / "sweep", quiet=True,
    )  # fmt: skip
    assert [trial["status"] for trial in found.result["trials"]] == ["failed", "complete"]
    assert "not finite" in found.result["trials"][0]["reason"]
    assert (found.result["status"], found.best, found.winner) == ("finished", {"learning_rate": 1e-3}, None)


@pytest.mark.slow
def test_a_sweep_varies_a_float_that_python_needs_for_some_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, make = [], fused_members.cohort_program

    def noted(built: Any, traced: Any) -> Any:
        programs.append((built.algorithm.kind, tuple(traced)))
        return make(built, traced)

    monkeypatch.setattr(fused_members, "cohort_program", noted)
    found = runnel.sweep(
        Kinds, TASK, over=["extra=1.0,2.0", "kind=a,b"], sampler="grid", batch=2, seeds=1, winner_seeds=0, envs=4,
        steps=2 * PER_ITERATION, eval_episodes=2, run_dir=tmp_path / "sweep", quiet=True,
    )  # fmt: skip
    assert [trial["status"] for trial in found.result["trials"]] == ["complete"] * 4
    assert programs == [("a", ("extra",)), ("b", ()), ("b", ())]


def test_a_full_disk_is_no_result_of_a_trial(tmp_path: Path) -> None:
    members = []
    for name, result in {
        "done": {"status": "finished", "env_steps": 64, "mean_return": 3.0},
        "full": {"status": "failed", "env_steps": 32, "reason": "No space left on device"},
        "nan": {"status": "failed", "env_steps": 32, "reason": "the loss is not finite"},
        "early": {"status": "finished", "env_steps": 32, "mean_return": 3.0},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result))
        members.append(tmp_path / name)
    found = member_outcomes(members, 64)
    assert (found.scores, found.failed) == ([3.0], ["the loss is not finite"])
    assert [text.partition(":")[0] for text in found.unfinished] == ["full", "early"]
    assert objective(found) is None
    assert objective(member_outcomes(members[:1], 64)) == 3.0


def test_trials_are_compared_by_the_metric_of_their_evaluations(tmp_path: Path) -> None:
    found = runnel.sweep(
        SMALL, TASK, over={"learning_rate": [1e-4, 1e-2]}, sampler="grid", seeds=1, winner_seeds=0, envs=4,
        steps=4 * PER_ITERATION, eval_metric="min:length", eval_episodes=2, run_dir=tmp_path / "sweep", quiet=True,
    )  # fmt: skip
    for trial in found.result["trials"]:
        (evaluation,) = (
            json.loads((tmp_path / "sweep" / name / "result.json").read_text())["evaluation"]
            for name in trial["members"]
        )
        assert trial["objective"] == evaluation["score"] == -evaluation["mean_return"]  # a reward for each step
    assert found.result["best"]["objective"] == max(trial["objective"] for trial in found.result["trials"])


def test_a_trial_whose_last_evaluation_failed_has_failed(tmp_path: Path) -> None:
    evaluation = {"env_steps": 32, "mean_return": 9.0, "score": 9.0}
    result = {"status": "finished", "env_steps": 64, "mean_return": 3.0, "evaluation": evaluation}
    (tmp_path / "result.json").write_text(json.dumps(result))
    found = member_outcomes([tmp_path], 64)
    assert (found.scores, found.failed) == ([], ["its last evaluation failed"])
    result["evaluation"] = {**evaluation, "env_steps": 64}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert objective(member_outcomes([tmp_path], 64)) == 9.0


@pytest.mark.parametrize("short", [1, 2])
def test_a_trial_that_finds_too_little_memory_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: int
) -> None:
    """Then it has failed, and the sweep continues with the others."""
    run, calls = Session.run, []

    def greedy(self: Session) -> Any:
        if self.state.run_dir.name == "member-0":
            calls.append(None)
            if len(calls) <= short:
                error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
                self.end.failed(error)
                raise error
        return run(self)

    monkeypatch.setattr(Session, "run", greedy)
    found = runnel.sweep(
        SMALL, TASK, over={"learning_rate": [1e-4, 1e-2]}, sampler="grid", seeds=1, winner_seeds=0, envs=4,
        steps=4 * PER_ITERATION, run_dir=tmp_path / "sweep", quiet=True,
    )  # fmt: skip
    assert (found.result["status"], len(calls)) == ("finished", 2)
    first, second = found.result["trials"]
    assert (first["status"], second["status"]) == ("complete" if short == 1 else "failed", "complete")
    assert short == 1 or first["reason"] == "Cannot allocate memory"


def test_a_directory_that_holds_a_sweep_is_not_used_for_another(
    swept: runnel.Sweep, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    for words in (["sweep", "ppo", TASK, "--over", "learning_rate=1:2"], ["train", "ppo", TASK]):
        assert main([*words, "--run-dir", str(swept.run_dir), "--quiet"]) == 2
        assert "already holds a sweep; continue it with `runnel resume" in capsys.readouterr().err
    assert main(["resume", str(swept.run_dir), "--steps", "9999"]) == 2
    assert "which goes on as it was begun; found --steps" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"runnel\.resume_sweep"):
        runnel.resume_members(swept.run_dir)


def test_a_missing_optuna_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    assert main(["sweep", "ppo", TASK, "--over", "learning_rate=1:2", "--quiet"]) == 2
    error, link = capsys.readouterr().err.splitlines()
    assert error.endswith("a sweep needs Optuna 5, which is not installed; run: pip install 'runnel[sweep]'")
    assert link == "see `runnel help dependencies#extras`"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_under_other_distributions_have_processes(tmp_path: Path) -> None:
    found = runnel.sweep(
        SMALL, "CartPole-v1", "inline", over={"learning_rate": [1e-4, 1e-2]}, sampler="grid", seeds=1, winner_seeds=1,
        envs=4, steps=4 * PER_ITERATION, eval_episodes=2, run_dir=tmp_path / "sweep", quiet=True,
    )  # fmt: skip
    assert (found.result["status"], [trial["status"] for trial in found.result["trials"]]) == (
        "finished", ["complete", "complete"],
    )  # fmt: skip
    assert len(list((tmp_path / "sweep" / "logs").iterdir())) == 2
    assert found.winner is not None
    assert found.winner.result["finished"] == 1
