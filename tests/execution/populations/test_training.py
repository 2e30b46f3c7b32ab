"""Populations: members that are compared and copied while they train."""

import contextlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from left_behind import until_left
from paths import ROOT

import runnel
from runnel import PBT, Decision, LogUniform, PopulationRule, Uniform
from runnel.algorithms.ppo import PPO
from runnel.errors import RunFailed, UserError
from runnel.execution.populations import member_copy
from runnel.execution.populations.rounds import PopulationRounds
from runnel.recording import checkpoint, population_file, provenance, run_directory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.events import read_events
from runnel.runtime.single_process.evaluation import CompiledEvaluator

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
EVERY = 4 * 8 * 4  # four iterations
RULE = PBT(every=EVERY, perturb={"learning_rate": LogUniform(1e-4, 1e-2)}, resample={"entropy_cost": Uniform(0.0, 0.1)})


def train(run_dir: Path, rounds: int, rule: PopulationRule = RULE, **more: Any) -> runnel.Members:
    asked: dict[str, Any] = {"members": 4, "envs": 4, "steps": rounds * EVERY, "quiet": True, "seed": 5, **more}
    return runnel.train_population(SMALL, TASK, rule=rule, run_dir=run_dir, **asked)


def state(run_dir: Path) -> dict[str, Any]:
    """All that training depends on: every array of every member, its settings, and the lineage."""
    found: dict[str, Any] = {"lineage": (run_dir / "lineage.jsonl").read_text()}
    for path in sorted(run_dir.glob("member-*")):
        checkpoints = Checkpoints(path)
        newest = checkpoints.newest()
        assert newest is not None
        for name, array in checkpoints.read(newest).items():
            found[f"{path.name} {name}"] = (newest.name, array.dtype, array.shape, array.tobytes())
        found[f"{path.name} settings"] = json.loads((path / "config.json").read_text())["algorithm"]["settings"]
    return found


def assert_same(run_dir: Path, other: Path) -> None:
    a, b = state(run_dir), state(other)
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []


def lineage(run_dir: Path, members: int = 4) -> list[population_file.Round]:
    return population_file.read_lineage(run_dir, members)


def test_an_objective_that_no_episode_has_fails_the_population(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="objective=env/foo: no episode has it"):
        train(tmp_path / "all", 2, replace(RULE, objective="env/foo"))
    assert json.loads((tmp_path / "all" / "result.json").read_text())["status"] == "failed"


def test_rounds_are_of_whole_iterations(tmp_path: Path) -> None:
    found = train(tmp_path / "all", 2, replace(RULE, every=EVERY - 5), members=2)
    assert [each.env_steps for each in lineage(tmp_path / "all", 2)] == [EVERY]
    assert {run["env_steps"] for run in found.result["runs"]} == {2 * EVERY}


class Whole:
    """A population that was not disturbed."""

    def __init__(self, run_dir: Path):
        self.read = 0
        load = Checkpoints.load

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.read += 1
            return load(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Checkpoints, "load", counted)
            self.found = train(run_dir, rounds=3)
        self.run_dir = run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("population") / "whole")


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same population, as long as nothing is decided yet."""
    return train(tmp_path_factory.mktemp("population") / "one", rounds=1).run_dir


def test_members_train_are_compared_and_copied(whole: Whole) -> None:
    result, rounds = whole.found.result, lineage(whole.run_dir)
    assert (result["status"], result["finished"], result["env_steps"]) == ("finished", 4, 4 * 3 * EVERY)
    assert [each.env_steps for each in rounds] == [EVERY, 2 * EVERY]
    for each in rounds:
        ((child, parent),) = each.copied
        assert (each.scores[child], each.scores[parent]) == (min(each.scores), max(each.scores))
    assert [each["parents"] for each in result["lineage"]] == [each.parents for each in rounds]
    for path, settings in zip(whole.found.members, rounds[-1].settings, strict=True):
        config = json.loads((path / "config.json").read_text())
        assert {name: config["algorithm"]["settings"][name] for name in settings} == settings
    returns = [run["return"] for run in result["runs"]]
    assert (result["best"]["member"], result["best"]["return"]) == (int(np.argmax(returns)), max(returns))
    child, parent = rounds[0].copied[0]
    (event, *_) = [each for each in read_events(whole.found.members[child]) if each["event"] == "copied"]
    assert (event["round"], event["parent"], event["settings"]) == (1, parent, rounds[0].settings[child])


def test_on_the_device_is_the_same_as_through_checkpoints(whole: Whole, one_round: Path, tmp_path: Path) -> None:
    assert whole.read == 0, "members of one program go on without reading checkpoints"
    shutil.copytree(one_round, tmp_path / "parts")
    for rounds in (2, 3):  # another process each time, as far as memory goes
        found = runnel.resume_population(tmp_path / "parts", steps=rounds * EVERY, quiet=True)
        assert found.result["status"] == "finished"
    assert_same(tmp_path / "parts", whole.run_dir)


def test_a_population_that_is_over_stays_as_it_is(whole: Whole) -> None:
    before = (whole.run_dir / "result.json").read_bytes()
    assert runnel.resume_population(whole.run_dir, quiet=True).result == whole.found.result
    assert (whole.run_dir / "result.json").read_bytes() == before
    assert len(provenance.read(whole.run_dir)) == 1
    with pytest.raises(UserError, match="have taken 384 steps already; ask for more"):
        runnel.resume_population(whole.run_dir, steps=EVERY, quiet=True)
    with pytest.raises(UserError, match="resume_population"):
        runnel.resume_members(whole.run_dir, quiet=True)


# Cut short


class Killed(BaseException):
    pass


def rounds_of(directory: Path, steps: int) -> Any:
    config = replace(population_file.read(directory, 4), steps=steps)
    return PopulationRounds(directory, RULE, True, time.monotonic(), "local", None, config)


class Quiet:
    def note(self, text: str) -> None: ...


def decide(directory: Path) -> None:
    """The population between the first round and the second."""
    population = rounds_of(directory, 4 * EVERY)
    if not lineage(directory):
        population.decide(Quiet())
    population.follow()


def writes(patch: pytest.MonkeyPatch, last: int | None) -> Iterator[int]:
    """Counts what is done to the disk, and kills it before the one of this number."""
    count = [0]

    def counting(do: Any) -> Any:
        def done(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == last:
                raise Killed
            return do(*args, **kwargs)

        return done

    for name in ("replace", "remove", "make_directory", "open_to_append"):
        patch.setattr(run_directory, name, counting(getattr(run_directory, name)))
    patch.setattr(Checkpoints, "rename", counting(Checkpoints.rename))
    patch.setattr(checkpoint, "write_arrays", counting(checkpoint.write_arrays))
    while True:
        yield count[0]


def test_a_decision_that_was_cut_short_anywhere_is_applied_whole(one_round: Path, tmp_path: Path) -> None:
    shutil.copytree(one_round, tmp_path / "whole")
    with pytest.MonkeyPatch.context() as patch:
        counter = writes(patch, None)
        next(counter)
        decide(tmp_path / "whole")
        steps = next(counter)
    assert steps >= 8
    for last in range(1, steps + 1):
        directory = tmp_path / f"cut-{last}"
        shutil.copytree(one_round, directory)
        with pytest.MonkeyPatch.context() as patch:
            next(writes(patch, last))
            with pytest.raises(Killed):
                decide(directory)
        decide(directory)
        assert_same(directory, tmp_path / "whole")
        assert population_file.read(directory, 4).applied == 1
        child, _ = lineage(directory)[0].copied[0]
        events = [event["event"] for event in read_events(directory / f"member-{child}")]
        assert events.count("copied") == 1
        shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(("iteration", "members"), [(4, "13"), (8, "2")])
def test_a_full_disk_is_no_failure_of_a_member(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iteration: int, members: str
) -> None:
    """Some members have their checkpoint, the others do not, and train on without them."""
    save = Checkpoints.save

    def full(self: Checkpoints, number: int, *args: Any) -> Path:
        if number == iteration and self.run_dir.name[-1] in members:
            raise OSError(28, "No space left on device")
        return save(self, number, *args)

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(RunFailed, match=r"No space left on device.*runnel resume"):
        train(tmp_path / "full", rounds=3)
    assert json.loads((tmp_path / "full" / "result.json").read_text())["status"] == "failed"
    monkeypatch.setattr(Checkpoints, "save", save)
    assert runnel.resume_population(tmp_path / "full", quiet=True).result["status"] == "finished"
    assert_same(tmp_path / "full", whole.run_dir)


# Members that fail


def test_a_member_whose_updates_are_not_finite_is_replaced(tmp_path: Path) -> None:
    rule = PBT(every=EVERY, perturb={"learning_rate": LogUniform(1e-4, 1e30)})
    variants = [{"learning_rate": rate} for rate in (1e-3, 1e30, 2e-3, 3e-3)]
    train(tmp_path / "all", 1, rule, variants=variants)
    (tmp_path / "all" / "member-1" / "result.json").unlink()  # as if it was killed before it could say that it failed
    found = runnel.resume_population(tmp_path / "all", steps=2 * EVERY, quiet=True)
    (decided,) = lineage(tmp_path / "all")
    assert (decided.failed, decided.scores[1]) == ([1], None)
    assert decided.parents[1] != 1
    assert decided.settings[1]["learning_rate"] < 1
    assert found.result["finished"] == 4, found.result["runs"]
    assert [run["env_steps"] for run in found.result["runs"]] == [2 * EVERY] * 4
    events = [event["event"] for event in read_events(found.members[1])]
    assert events == ["nan", "copied", "resumed"]


def test_a_population_of_failures_fails(one_round: Path, tmp_path: Path) -> None:
    shutil.copytree(one_round, tmp_path / "all")
    for path in (tmp_path / "all").glob("member-*/result.json"):
        path.write_text(json.dumps({"status": "failed", "env_steps": 8, "reason": "it was not finite"}))
    with pytest.raises(RunFailed, match="all members have failed, the first because it was not finite"):
        runnel.resume_population(tmp_path / "all", steps=2 * EVERY, quiet=True)
    assert json.loads((tmp_path / "all" / "result.json").read_text())["status"] == "failed"


def test_a_member_that_failed_before_its_first_checkpoint_begins_again(one_round: Path, tmp_path: Path) -> None:
    shutil.copytree(one_round, tmp_path / "all")
    member = tmp_path / "all" / "member-1"
    shutil.rmtree(member / "checkpoints")
    (member / "result.json").write_text(json.dumps({"status": "failed", "env_steps": 0, "reason": "it broke"}))
    decide(tmp_path / "all")
    (decided,) = lineage(tmp_path / "all")
    assert (decided.failed, decided.parents[1] != 1) == ([1], True)
    settings = json.loads((member / "config.json").read_text())["algorithm"]["settings"]
    assert settings["learning_rate"] == decided.settings[1]["learning_rate"]
    assert [event["event"] for event in read_events(member)] == ["retried"]
    assert not (member / "result.json").exists()


@pytest.mark.parametrize("parents", [(0, 1, 2, 3), (0, 1, 0, 3)])
def test_a_member_that_failed_is_replaced_before_any_member_has_a_score(
    one_round: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parents: tuple[int, ...]
) -> None:
    shutil.copytree(one_round, tmp_path / "all")
    failed = {"status": "failed", "env_steps": 8, "reason": "it was not finite"}
    (tmp_path / "all" / "member-1" / "result.json").write_text(json.dumps(failed))
    monkeypatch.setattr(member_copy, "score", lambda path, objective: -math.inf)
    population = rounds_of(tmp_path / "all", 4 * EVERY)
    if parents != (0, 1, 2, 3):  # else the rule of the population, which knows no good member either
        population.rule = Given(decisions=tuple((parent, 1e-3) for parent in parents))
    population.decide(Quiet())
    population.follow()
    (decided,) = lineage(tmp_path / "all")
    assert decided.parents == [0, 0, parents[2], 3]
    assert [event["event"] for event in read_events(tmp_path / "all" / "member-1")][-1] == "copied"


# Rules of the user's own


@dataclass(frozen=True)
class Given(PopulationRule):
    """Decides what it was made with."""

    every: int = EVERY
    decisions: tuple[tuple[int, float], ...] = ()

    def decide(self, rng: Any, round: int, scores: np.ndarray, settings: Any) -> Any:
        return [Decision(parent, {"learning_rate": rate}) for parent, rate in self.decisions]


@dataclass(frozen=True)
class Begun(PBT):
    """Begins with what it was made with."""

    first: Any = ()

    def initial(self, rng: Any, members: int) -> Any:
        return self.first


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([{"learning_rate": 1e-3}] * 3, "Begun.initial: found 3, expected a list of 4 settings"),
        (None, "Begun.initial: found None, expected a list of 4 settings"),
        ([1e-3] * 4, "Begun.initial: found 0.001, expected settings by name"),
        ([{"learning_rate": math.nan}] * 4, "Begun.initial: found .*nan.*finite numbers"),
        ([{"learning_rate": "fast"}] * 4, "Begun.initial: found .*fast.*finite numbers"),
        ([{"discount": 0.5}] * 4, "Begun.initial: found 'discount', which is not in varying"),
    ],
)
def test_settings_that_a_rule_cannot_begin_with_are_refused(tmp_path: Path, first: Any, expected: str) -> None:
    rule = Begun(every=EVERY, perturb={"learning_rate": LogUniform(1e-4, 1e-2)}, first=first)
    with pytest.raises(UserError, match=expected):
        train(tmp_path / "all", 1, rule)
    assert not (tmp_path / "all").exists()


def test_a_users_own_rule_may_change_the_settings_of_all(one_round: Path, tmp_path: Path) -> None:
    shutil.copytree(one_round, tmp_path / "own")
    population = rounds_of(tmp_path / "own", 2 * EVERY)
    rates = [1e-3, 2e-3, 3e-3, 4e-3]
    population.rule = Given(decisions=tuple(zip((0, 0, 0, 3), rates, strict=True)))
    population.decide(Quiet())
    population.follow()
    for k, rate in enumerate(rates):
        config = json.loads((tmp_path / "own" / f"member-{k}" / "config.json").read_text())
        assert config["algorithm"]["settings"]["learning_rate"] == rate
    states = [
        {n: a.tobytes() for n, a in arrays.items() if ".states" in n}
        for arrays in map(newest_arrays, sorted((tmp_path / "own").glob("member-*")))
    ]
    assert states[0] == states[1] == states[2] != states[3]


def newest_arrays(run_dir: Path) -> dict[str, np.ndarray]:
    newest = Checkpoints(run_dir).newest()
    assert newest is not None
    return Checkpoints(run_dir).read(newest)


@pytest.mark.parametrize(
    ("decisions", "expected"),
    [
        ([(0, 1e-3)], "expected a list of 4 decisions"),
        ([(1, 1e-3), (0, 1e-3), (2, 1e-3), (3, 1e-3)], "member 1 is copied and becomes a copy too"),
        ([(0, 1e-3), (4, 1e-3), (2, 1e-3), (3, 1e-3)], "found Decision.parent=4.*, expected runnel.Decision"),
        ([(0, 1e-3), (1, float("nan")), (2, 1e-3), (3, 1e-3)], "expected finite numbers"),
        ([(0, 1e-3), (1, -1.0), (2, 1e-3), (3, 1e-3)], "learning_rate"),
    ],
)
def test_a_decision_that_cannot_be_followed_is_refused(
    one_round: Path, tmp_path: Path, decisions: Any, expected: str
) -> None:
    run_dir = tmp_path / "x"
    shutil.copytree(one_round, run_dir)
    population = rounds_of(run_dir, 2 * EVERY)
    population.rule, before = Given(decisions=decisions), state_files(run_dir)
    with pytest.raises(UserError, match=expected):
        population.decide(Quiet())
    assert state_files(run_dir) == before


def state_files(run_dir: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run_dir.glob("member-*/config.json")} | {
        str(path): path.read_bytes() for path in run_dir.glob("lineage.jsonl")
    }


# Files that were edited


def edit(run_dir: Path, **changes: Any) -> None:
    file = run_dir / "population.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_rule_without_a_signature_is_not_imported(
    one_round: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(one_round, tmp_path / "run")
    (tmp_path / "strange.py").write_text("import pathlib\npathlib.Path(__file__ + '.ran').touch()\nclass Rule: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for named in ({"class": "strange:Rule", "settings": {}}, {"class": "runnel.population:PBT", "settings": {
        "perturb": {"dict": {"learning_rate": {"object": "strange:Rule"}}}}}):  # fmt: skip
        edit(tmp_path / "run", rule=named)
        with pytest.raises(UserError, match=r"population.json names code that would be executed.*--trust strange:Rule"):
            runnel.resume_population(tmp_path / "run", steps=2 * EVERY, quiet=True)
    assert not (tmp_path / "strange.py.ran").exists()
    edit(tmp_path / "run", rule={"class": "strange:Rule", "settings": {}})
    with pytest.raises(UserError, match="is no PopulationRule"):
        runnel.resume_population(tmp_path / "run", steps=2 * EVERY, quiet=True, trust=["strange:Rule"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"applied": 3}, "found 0 decisions, of which 3 are applied"),
        ({"rule": {"class": "runnel.population:PBT", "settings": {"quantile": 7}}}, "quantile=7"),
        ({"rule": {"class": "runnel.population:PBT", "settings": {"every": "x"}}}, "expected a whole number"),
        ({"rule": {"class": "runnel.population:Uniform", "settings": {}}}, "names code that would be executed"),
        ({"rule": {"class": "runnel.algorithms.ppo:PPO", "settings": {}}}, "is no PopulationRule"),
    ],
)
def test_a_population_that_was_edited_is_refused(
    one_round: Path, tmp_path: Path, changes: dict[str, Any], expected: str
) -> None:
    shutil.copytree(one_round, tmp_path / "run")
    edit(tmp_path / "run", **changes)
    with pytest.raises(UserError, match=expected):
        runnel.resume_population(tmp_path / "run", steps=2 * EVERY, quiet=True)


# Elsewhere than in one program, and killed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_members_with_replay_are_compared_by_their_evaluations(tmp_path: Path) -> None:
    """Each keeps its own replay, on the device and through checkpoints alike; one program evaluates all."""
    rule = PBT(every=512, perturb={"learning_rate": LogUniform(1e-4, 1e-2)})
    asked: dict[str, Any] = {
        "rule": rule, "members": 3, "envs": 4, "eval_every": 256, "eval_episodes": 2, "quiet": True,
        "settings": {"hidden": (8,), "capacity": 1024, "min_size": 64, "batch": 16, "unroll": 16},
    }  # fmt: skip
    shared, with_seed = [], CompiledEvaluator.with_seed
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompiledEvaluator, "with_seed", lambda self, seed: shared.append(self) or with_seed(self, seed))
        whole = runnel.train_population("dqn", TASK, steps=1024, run_dir=tmp_path / "whole", **asked)
    assert len(shared) == 5, "all but the first of three members in two rounds"
    (decided,) = lineage(tmp_path / "whole", 3)
    for path, score in zip(whole.members, decided.scores, strict=True):
        evaluated = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
        assert [found["score"] for found in evaluated if found["env_steps"] == 512] == [score]
    runnel.train_population("dqn", TASK, steps=512, run_dir=tmp_path / "parts", **asked)
    runnel.resume_population(tmp_path / "parts", steps=1024, quiet=True)
    assert_same(tmp_path / "parts", tmp_path / "whole")
    replays = [Checkpoints(path).read(Checkpoints(path).newest() or path, "replay") for path in whole.members]
    first, *others = [b"".join(array.tobytes() for array in replay.values()) for replay in replays]
    assert first not in others


@dataclass(frozen=True)
class Untraced(PPO):
    """Python code needs the value of its learning rate."""

    def init(self, key: Any, spec: Any) -> Any:
        assert math.isfinite(self.learning_rate)
        return super().init(key, spec)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_members_in_several_programs_are_copied_through_checkpoints(tmp_path: Path) -> None:
    rule = PBT(every=EVERY, quantile=0.5, perturb=RULE.perturb)
    algorithm = Untraced(unroll=8, minibatches=2, epochs=1, hidden=(8,))
    asked: dict[str, Any] = {"rule": rule, "members": 2, "envs": 4, "quiet": True}
    whole = runnel.train_population(algorithm, TASK, steps=2 * EVERY, run_dir=tmp_path / "whole", **asked)
    assert whole.result["finished"] == 2, whole.result
    assert len(lineage(tmp_path / "whole", 2)[0].copied) == 1
    runnel.train_population(algorithm, TASK, steps=EVERY, run_dir=tmp_path / "parts", **asked)
    runnel.resume_population(tmp_path / "parts", steps=2 * EVERY, quiet=True)
    assert_same(tmp_path / "parts", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_members_in_processes_are_copied_through_checkpoints(tmp_path: Path) -> None:
    rule = PBT(every=EVERY, quantile=0.5, perturb=RULE.perturb)
    asked: dict[str, Any] = {"rule": rule, "members": 2, "envs": 4, "quiet": True}
    whole = runnel.train_population(
        SMALL, "CartPole-v1", "inline", steps=2 * EVERY, run_dir=tmp_path / "whole", **asked
    )
    assert (whole.result["status"], whole.result["finished"]) == ("finished", 2), whole.result
    ((child, parent),) = lineage(tmp_path / "whole", 2)[0].copied
    assert [e["parent"] for e in read_events(whole.members[child]) if e["event"] == "copied"] == [parent]
    runnel.train_population(SMALL, "CartPole-v1", "inline", steps=EVERY, run_dir=tmp_path / "parts", **asked)
    runnel.resume_population(tmp_path / "parts", steps=2 * EVERY, quiet=True)
    assert_same(tmp_path / "parts", tmp_path / "whole")


def command(*words: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runnel", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def begin(run_dir: Path, rounds: int = 100, task: str = TASK, *more: Any) -> subprocess.Popen[str]:
    return command(
        "train", "ppo", task, "--population", 4, "--pbt-every", 3200, "--pbt-perturb", "learning_rate=log:1e-4:1e-2",
        "--pbt-resample", "entropy_cost=0:0.1", "--envs", 4, "--steps", rounds * 3200, "--set", "unroll=8",
        "minibatches=2", "epochs=1", "hidden=(8,)", "--run-dir", run_dir, "--checkpoint-every", 0.1, *more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_population_that_was_interrupted_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = begin(tmp_path / "whole", rounds=12)
    out, _ = undisturbed.communicate(timeout=300)
    assert undisturbed.returncode == 0, out
    process = begin(tmp_path / "interrupted", rounds=12)
    wait_for(tmp_path / "interrupted" / "lineage.jsonl", process)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0, out
    assert json.loads((tmp_path / "interrupted" / "result.json").read_text())["status"] == "interrupted"
    again = command("resume", tmp_path / "interrupted")
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    assert_same(tmp_path / "interrupted", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_population_killed_at_random_ten_times_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = begin(tmp_path / "whole")
    out, _ = undisturbed.communicate(timeout=900)
    assert undisturbed.returncode == 0, out
    rng, kills = random.Random(0), 0
    process = begin(tmp_path / "killed")
    wait_for(tmp_path / "killed" / "lineage.jsonl", process)
    while kills < 10:
        time.sleep(rng.uniform(0.0, 4.0))
        assert process.poll() is None, f"it ended after {kills} kills: {process.communicate()[0]}"
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        kills += 1
        before = {path: path.stat().st_mtime for path in (tmp_path / "killed").glob("member-*/metrics.jsonl")}
        process = command("resume", tmp_path / "killed")
        if kills < 10:
            wait_for_change(before, process)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    assert_same(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_population_in_processes_killed_at_random_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    inline = ("CartPole-v1", "--distribution", "inline", "--pbt-quantile", 0.5)
    undisturbed = begin(tmp_path / "whole", 4, *inline)
    out, _ = undisturbed.communicate(timeout=900)
    assert undisturbed.returncode == 0, out
    assert len(lineage(tmp_path / "whole")) == 3
    rng, kills, killed = random.Random(0), 0, tmp_path / "killed"
    process = begin(killed, 4, *inline)
    while kills < 5:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(2.0, 20.0))
        if process.poll() is not None:
            break
        process.kill()
        process.communicate(timeout=60)
        kills += 1
        until_left(killed)
        process = command("resume", killed) if (killed / "population.json").exists() else begin(killed, 4, *inline)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out
    assert kills >= 2, "it ended too early to be killed"
    assert_same(killed, tmp_path / "whole")


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def wait_for_change(before: dict[Path, float], process: subprocess.Popen[str]) -> None:
    """Waits until it trains again, or at least half of the time: some kills occur while it starts."""
    deadline = time.monotonic() + 60
    while all(path.stat().st_mtime == at for path, at in before.items()) and time.monotonic() < deadline:
        if process.poll() is not None:
            return
        time.sleep(0.02)
