"""The command line, as scripts depend on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from commands import run_command
from paths import ROOT, SUPPORT

from runnel import distributions
from runnel.cli import arguments
from runnel.cli import main as cli
from runnel.distributions.asynchronous import Async
from runnel.distributions.coarse import Coarse
from runnel.errors import UserError
from runnel.recording.metrics import read_metrics

TRAIN = ["train", "toys:Reinforce", "toys:Corridor", "--distribution", "inline", "--envs", "8"]
RESULT_FIELDS = {
    "status", "algorithm", "environment", "distribution", "seed", "env_steps", "updates", "episodes",
    "mean_return", "wall_seconds", "startup_seconds", "steps_per_second", "staleness_mean", "staleness_max",
    "restarts", "workers", "bottleneck",
}  # fmt: skip


@pytest.fixture
def runnel(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process."""
    return partial(run_command, capsys)


def spawn(*argv: str | Path, **kwargs: Any) -> subprocess.Popen[str]:
    """Runs a command in a process of its own, where the tests' toys can be imported."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{SUPPORT}"}
    command = [sys.executable, "-m", "runnel", *map(str, argv)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


# Mistakes


MISTAKES = [
    ("", "runnel: the following arguments are required: COMMAND"),
    ("trian", "runnel: there is no command 'trian'; did you mean 'train'?"),
    ("xyz", "runnel: there is no command 'xyz'; known: bench, completion, "),
    ("train toys:Reinforce", "runnel train: the following arguments are required: ENVIRONMENT"),
    ("train", "runnel train: the following arguments are required: ALGORITHM, ENVIRONMENT"),
    ("train toys:Reinforce X --trust a:b", "found --trust, which is for code that a --config file names"),
    ("train --config nowhere.json", "there is no file nowhere.json; expected the config.json of a run, or a run dir"),
    ("train toys:Reinforce X --steps 0", "argument --steps: found 0, expected a whole number of 1 or more"),
    ("train toys:Reinforce X --steps many", "found 'many', expected a whole number"),
    ("train toys:Reinforce X --envs -2", "found -2, expected a whole number of 1 or more"),
    ("train toys:Reinforce X --stop-at-return nan", "found 'nan', expected a finite number"),
    ("train toys:Reinforce X --address a:1", "found --address a:1, which is that of a Ray cluster; add --launcher ray"),
    ("plan toys:Reinforce X --machines a=4 --launcher ray", "found --machines and --launcher ray, expected one"),
    ("plan toys:Reinforce X --machines a", "found 'a', expected a machine as in a=8"),
    ("train toys:Reinforce X --launcher slurm", "argument --launcher: 'slurm' is not known; use local, ray or"),
    ("plan toys:Reinforce X --launcher a:b", "found --launcher a:b, whose machines are known once it starts"),
    ("train toys:Reinforce X --checkpoint-every 0", "expected more than 0 seconds"),
    (
        "train toys:Reinforce X --sed 1",
        "runnel train: found '--sed', which it does not take; did you mean '--seed'",
    ),
    ("TRAIN --learning-rate 1e-3", "did you mean '--set learning_rate=1e-3'?"),
    ("train ppo CartPole-v1 --learning-rate=1e-3", "did you mean '--set learning_rate=1e-3'?"),
    ("train --learning-rate 1e-3 ppo CartPole-v1", "did you mean '--set learning_rate=1e-3'?"),
    ("train ppo --learning-rate 1e-3", "did you mean '--set learning_rate=1e-3'?"),
    ("train ppo CartPole-v1 --lr 1e-3", "did you mean '--set learning_rate=1e-3'"),
    ("train ppo CartPole-v1 -lr 1e-3", "did you mean '--set learning_rate=1e-3'"),
    ("train ppo CartPole-v1 --learning-rte 1e-3", "did you mean '--set learning_rate=1e-3'"),
    ("plan ppo CartPole-v1 --popart --seed 1", "did you mean '--set popart=true'"),
    ("TRAIN --distribution fine --env-splits 2", "did you mean '--set distribution.env_splits=2'"),
    ("train ppo CartPole-v1 --num-envs 8", "did you mean '--envs'"),
    ("train ppo CartPole-v1 --run_dir x", "did you mean '--run-dir'?"),
    ("plot somewhere --oot x.png", "found '--oot', which it does not take; did you mean '--out'"),
    ("plot somewhere", "the following arguments are required: --out"),
    ("plot somewhere --nothing x.png", "the following arguments are required: --out"),
    ("resume somewhere --step 8", "found '--step', which it does not take; did you mean '--steps'"),
    ("train nobody:Nothing X --what 1", "found '--what', which it does not take"),
    ("train toys:Reinforce X Y", "found 'Y', which it does not take"),
    ("train pop CartPole-v1", "'pop'; did you mean 'ppo'?"),
    ("train toys:Nothing CartPole-v1", "Nothing"),
    ("train toys:Corridor CartPole-v1", "runnel train: "),
    ("train toys:Reinforce CartPol-v1", "did you mean"),
    (
        "train toys X",
        "there is no algorithm 'toys'; 'toys' is a module: choose toys:Reinforce or toys:",
    ),
    ("train toys.Reinforce X", "there is no algorithm 'toys.Reinforce'; did you mean 'toys:Reinforce'?"),
    ("list toys", "'toys' is a module: choose toys:Reinforce"),
    ("train toys:Reinforce toys", "is a module: choose toys:Corridor or toys:Tag"),
    ("TRAIN --distribution custom_distributions", "'custom_distributions' is a module: choose custom_distributions:"),
    ("TRAIN --set learning_rat=1", "did you mean 'learning_rate'?"),
    ("TRAIN --set unroll=2.5", "unroll=2.5: found 2.5, expected a whole number"),
    ("TRAIN --set unroll", "found 'unroll', expected key=value"),
    ("TRAIN --set env.size=3", "size"),
    ("TRAIN --distribution coars", "did you mean 'coarse'?"),
    ("TRAIN --actors 2", "--actors needs a --distribution that has it; those that have:"),
    (
        "TRAIN --distribution inline --learners 2",
        "distribution inline has no --learners; those that have: replicated, async, decoupled",
    ),
    ("TRAIN --distribution async --set distribution.actor=2", "did you mean 'actors'"),
    ("train toys:Reinforce CartPole-v1 --distribution fused", "host environment"),
    (
        "plan toys:Reinforce CartPole-v1 --distribution coarse --actors 3 --envs 8",
        "--envs 8 does not divide over 3 actors",
    ),
    ("plan toys:Reinforce toys:Corridor --format png", "argument --format: invalid choice: 'png'"),
    ("resume /nowhere", "runnel resume: there is no directory /nowhere"),
    ("eval /nowhere", "runnel eval: there is no directory /nowhere"),
    ("eval .", "runnel eval: . holds no run: there is no config.json in it"),
    ("plot /nowhere --out x.png", "runnel plot: /nowhere is no run"),
    ("plot /nowhere", "the following arguments are required: --out"),
    ("list nobody", "there is no algorithm, distribution or environment 'nobody'"),
    ("list nope", "there is no algorithm, distribution or environment 'nope'; known: a2c, async, "),
    ("TRAIN --distribution nope", "there is no distribution 'nope'; known: async, central, coarse, "),
    ("bench nothing", "runnel bench: "),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES)
def test_a_mistake_is_a_line_or_two_and_status_2(
    runnel: Any, words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = runnel(*words.replace("TRAIN", "train toys:Reinforce toys:Corridor").split())
    assert ended.status == 2
    assert message in ended.err
    assert len(ended.err.splitlines()) <= 2
    assert ended.err.startswith("runnel")
    assert ended.out == ""
    assert not list(tmp_path.iterdir())


def test_a_module_is_not_executed_to_say_what_it_defines(
    runnel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("raise SystemExit('executed')\n")
    source = (
        "raise SystemExit('executed')\nclass Mine(runnel.Algorithm): ...\nclass Other(Mine): ...\nclass State: ...\n"
    )
    (tmp_path / "mine" / "idea.py").write_text(source)
    assert "choose mine.idea:Mine or mine.idea:Other" in runnel("train", "mine.idea", "CartPole-v1").err
    found = runnel("train", "mine/idea.py", "CartPole-v1")
    assert found.status == 2
    assert "choose mine/idea.py:Mine or mine/idea.py:Other" in found.err


def test_a_module_has_the_environments_that_extend_others_of_it(
    runnel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grids.py").write_text(
        "class Grid(gymnasium.Env): ...\nclass Wide(Grid): ...\nclass Wider(Wide): ...\nclass State: ...\n"
    )
    assert "choose grids:Grid or grids:Wide or grids:Wider\n" in runnel("train", "toys:Reinforce", "grids").err


@pytest.mark.parametrize("content", ["class Mine(", "(" * 100_000, "\0", None])
def test_a_module_that_cannot_be_read_has_no_candidates(
    runnel: Any, content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "broken.py").open("w") as file:
        file.write(content or "class Mine(Algorithm): ...\n")
        if content is None:
            file.truncate(2**40)
    ended = runnel("train", "broken", "CartPole-v1")
    assert ended.status == 2
    assert "there is no algorithm 'broken'; " in ended.err


def test_a_module_beside_an_algorithm_of_the_same_name_is_pointed_out(
    runnel: Any, called: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reinforce.py").write_text("from runnel import Algorithm\nclass Reinforce(Algorithm): ...\n")
    ended = runnel("train", "reinforce", "CartPole-v1")
    assert ended.status == 0
    assert "reinforce is Runnel's own; for that of reinforce.py here, write reinforce:Reinforce" in ended.err
    assert runnel("train", "ppo", "CartPole-v1").err == ""
    assert runnel("train", "reinforce", "CartPole-v1", "--quiet").err == ""


def test_other_exceptions_are_ours_and_show_where_they_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setitem(cli.COMMANDS, "list", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["list"])


def test_a_long_reason_is_cut(runnel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise UserError("one\ntwo\nthree\n")

    monkeypatch.setitem(cli.COMMANDS, "list", fail)
    assert runnel("list") == (2, "", "runnel list: one\ntwo\n")


def test_an_interruption_outside_training_is_quiet(runnel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "list", interrupt)
    assert runnel("list") == (130, "", "")


# Training and what follows it


def test_train_resume_eval_plot(runnel: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = runnel(*TRAIN, "--steps", "1e3", "--seed", "3", "--run-dir", run, "--set", "unroll=4", "learning_rate=1e-3")
    assert ended.status == 0
    assert "finished: reinforce on toys:Corridor, inline, seed 3" in ended.out
    config = json.loads((run / "config.json").read_text())
    assert config["algorithm"]["settings"] == {"learning_rate": 1e-3, "unroll": 4}
    result = json.loads((run / "result.json").read_text())
    assert result.keys() >= RESULT_FIELDS
    assert (result["status"], result["env_steps"], result["seed"]) == ("finished", 1024, 3)
    assert read_metrics(run)[-1]["env_steps"] == 1024
    assert list(run.glob("events.out.tfevents.*"))
    assert list((run / "checkpoints").iterdir())

    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    refused = runnel(*TRAIN, "--run-dir", run)
    assert refused.status == 2
    assert "already holds a run" in refused.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    refused = runnel(*TRAIN, "--run-dir", tmp_path / "two\nlines")
    assert refused.status == 2
    assert "two\\nlines, which has a line break or another control character; choose" in refused.err
    assert not (tmp_path / "two\nlines").exists()

    resumed = runnel("resume", run, "--steps", "2000", "--quiet")
    assert resumed == (0, "", "")
    steps = [record["env_steps"] or 0 for record in read_metrics(run)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 2016

    played = runnel("eval", run, "--episodes", "3", "--seed", "1", "--json")
    assert played.status == 0
    assert len(json.loads(played.out)["returns"]) == 3
    assert "mean of 2 episodes" in runnel("eval", run, "--episodes", "2").out

    picture = tmp_path / "curve.png"
    assert runnel("plot", run, run, "--out", picture) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_checkpoint_is_trained_again_elsewhere(runnel: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert runnel(*TRAIN, "--steps", "64", "--run-dir", run, "--quiet").status == 0
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    resumed, again = runnel("resume", run), runnel(*TRAIN, "--run-dir", run)
    assert (resumed.status, again.status) == (2, 2)
    assert "train again with another --run-dir, or remove this directory" in resumed.err
    assert "holds a run without a checkpoint" in again.err
    assert ": remove the directory or choose another --run-dir" in again.err
    assert "runnel resume" not in again.err


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `train` and `resume` are called with, instead of training."""
    given: dict[str, Any] = {"status": "finished"}

    def note(*args: Any, **kwargs: Any) -> Any:
        given.update(args=args, **kwargs)
        return SimpleNamespace(result={"status": given["status"]})

    monkeypatch.setattr("runnel.execution.training.train", note)
    monkeypatch.setattr("runnel.execution.training.resume", note)
    return given


def test_flags_reach_training(runnel: Any, called: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
    monkeypatch.setattr("runnel.recording.sinks.check_wandb", lambda: None)
    ended = runnel(
        "train", "toys:Reinforce", "toys:Corridor", "--set", "unroll=2", "--set", "env.size=3", "env.mode=x",
        "--distribution", "async", "--actors", "3", "--set", "distribution.learners=2", "--envs", "1_024",
        "--steps", "1e6", "--seed", "7", "--run-dir", "x", "--stop-at-return", "-200.5", "--launcher", "ray",
        "--quiet", "--wandb", "--checkpoint-every", "5", "--deterministic", "--eval-every", "1e4", "--eval-episodes",
        "20", "--eval-seed", "3", "--eval-workers", "2", "--eval-wait", "--eval-explore", "--eval-metric", "min:length",
        "--stop-at-eval-return", "9.5", "--keep-every", "5e4", "--keep-every-seconds", "60", "--keep-best", "3",
        "--set", "eval.env.size=4", "--init-from", "runs/a@best",
    )  # fmt: skip
    assert ended == (0, "", "")
    assert called == {
        "status": "finished",
        "args": ("toys:Reinforce", "toys:Corridor"),
        "settings": {"unroll": 2},
        "env_settings": {"size": 3, "mode": "x"},
        "distribution": Async(actors=3, learners=2),
        "envs": 1024,
        "steps": 1_000_000,
        "seed": 7,
        "run_dir": Path("x"),
        "stop_at_return": -200.5,
        "launcher": "ray",
        "address": None,
        "quiet": True,
        "wandb": True,
        "checkpoint_every_s": 5.0,
        "eval_every": 10_000,
        "eval_episodes": 20,
        "eval_seed": 3,
        "eval_workers": 2,
        "eval_wait": True,
        "eval_explore": True,
        "eval_metric": "min:length",
        "stop_at_eval_return": 9.5,
        "eval_env_settings": {"size": 4},
        "keep_every": 50_000,
        "keep_every_s": 60.0,
        "keep_best": 3,
        "init_from": "runs/a@best",
    }
    assert os.environ["XLA_FLAGS"] == "--xla_something=1 --xla_gpu_deterministic_ops=true"


@pytest.mark.parametrize(
    "words",
    [
        "--set unroll=2 learning_rate=1 toys:Reinforce toys:Corridor",
        "toys:Reinforce --set unroll=2 toys:Corridor --set learning_rate=1",
        "toys:Reinforce toys:Corridor --set=unroll=2 --set learning_rate=1 --quiet",
    ],
)
def test_settings_may_stand_anywhere(runnel: Any, called: dict[str, Any], words: str) -> None:
    assert runnel("train", *words.split()) == (0, "", "")
    assert called["args"] == ("toys:Reinforce", "toys:Corridor")
    assert called["settings"] == {"unroll": 2, "learning_rate": 1.0}


def test_a_setting_that_is_given_twice_must_say_the_same(runnel: Any, called: dict[str, Any]) -> None:
    words = ["train", "toys:Reinforce", "toys:Corridor", "--distribution", "coarse", "--set", "distribution.actors=2"]
    assert runnel(*words, "--actors", "2").status == 0
    assert called["distribution"] == Coarse(actors=2)
    ended = runnel(*words, "--actors", "4")
    assert ended.status == 2
    assert "--actors 4 and --set distribution.actors=2 set one number to different values" in ended.err


def test_missing_wandb_is_reported_before_there_is_a_run(
    runnel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = runnel(*TRAIN, "--wandb", "--run-dir", tmp_path / "run")
    assert ended.status == 2
    assert "pip install 'runnel[wandb]'" in ended.err
    assert not list(tmp_path.iterdir())


def test_what_is_not_given_is_left_to_training(runnel: Any, called: dict[str, Any]) -> None:
    runnel("train", "toys:Reinforce", "toys:Corridor")
    assert called["distribution"] is None
    assert not called.keys() & {"envs", "steps", "seed", "run_dir", "stop_at_return", "checkpoint_every_s"}


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("interrupted", 0), ("failed", 1)])
def test_the_status_is_0_only_for_what_ended_well(
    runnel: Any, called: dict[str, Any], status: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    called["status"] = status
    assert runnel("train", "toys:Reinforce", "toys:Corridor").status == code
    assert runnel("resume", tmp_path).status == code


def test_a_run_can_be_resumed_under_another_distribution(runnel: Any, called: dict[str, Any], tmp_path: Path) -> None:
    described = {"class": "runnel.distributions.asynchronous:Async", "settings": {"actors": 2, "learners": 1}}
    (tmp_path / "config.json").write_text(json.dumps({"distribution": described}))
    assert runnel("resume", tmp_path).status == 0
    assert (called["distribution"], called["steps"]) == (None, None)
    runnel("resume", tmp_path, "--learners", "4", "--steps", "5")
    assert (called["distribution"], called["steps"]) == (Async(actors=2, learners=4), 5)
    runnel("resume", tmp_path, "--distribution", "coarse", "--actors", "3")
    assert called["distribution"] == Coarse(actors=3)
    assert "distribution async has no --inference" in runnel("resume", tmp_path, "--inference", "1").err


# Looking without running


@pytest.mark.parametrize("name", distributions.names())
def test_a_plan_in_three_formats(runnel: Any, name: str) -> None:
    words = ["plan", "toys:GradientReinforce", "toys:Corridor", "--envs", "8", "--distribution", name]
    text = runnel(*words)
    assert text.status == 0
    assert "an iteration" in text.out
    plan = json.loads(runnel(*words, "--format", "json").out)
    assert plan["envs"] == 8
    assert {node for fragment in plan["fragments"] for node in fragment["nodes"]} >= {
        "environment",
        "act",
        "rollout",
    }
    assert ElementTree.fromstring(runnel(*words, "--format", "svg").out).tag.endswith("svg")


def test_a_plan_shows_where_evaluation_workers_would_run(runnel: Any) -> None:
    words = ["plan", "toys:Reinforce", "toys:Corridor", "--envs", "8", "--distribution", "coarse", "--actors", "2"]
    words += ["--machines", "a=2,b=2", "--eval-workers", "2"]
    plan = json.loads(runnel(*words, "--format", "json").out)
    assert sorted(plan["evaluation"]) == ["evaluator-0", "evaluator-1"]
    assert sorted([*plan["hosts"].values(), plan["evaluation"]["evaluator-0"]]) == ["a", "a", "b", "b"]
    assert plan["evaluation"]["evaluator-1"] == "the driver"
    assert "the driver  evaluator-1" in runnel(*words).out


def test_the_list_names_everything(runnel: Any) -> None:
    text = runnel("list").out
    for name in ("ppo", "dqn", *distributions.names(), "gymnax:", "package.module:callable"):
        assert name in text
    listed = json.loads(runnel("list", "--json").out)
    assert listed.keys() == {"algorithms", "distributions", "environments"}
    ppo = next(entry for entry in listed["algorithms"] if entry["name"] == "ppo")
    assert {"name": "learning_rate", "type": "float"}.items() <= ppo["settings"][0].items()
    assert {entry["name"]: entry["flags"] for entry in listed["distributions"]}["coarse"] == ["actors"]


def test_the_list_fits_100_columns_where_their_number_is_unknown() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "runnel", "list"]
    listed = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    lines = listed.stdout.splitlines()
    assert len(lines) > 30
    assert max(map(len, lines)) <= 100


def test_output_that_has_no_room_is_an_error_in_a_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-m", "runnel", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "runnel list: cannot write: No space left on device\n"


def test_an_algorithm_is_listed_with_its_settings(runnel: Any) -> None:
    assert "learning_rate=" in runnel("list", "ppo").out
    assert json.loads(runnel("list", "async", "--json").out)["settings"][0]["name"] == "actors"
    help_text = runnel("train", "ppo", "--help")
    assert help_text.status == 0
    assert "--stop-at-return" in help_text.out
    assert "learning_rate=" in help_text.out


def test_help_and_lists_do_not_import_jax() -> None:
    code = (
        "import sys\n"
        "from runnel.cli.main import main\n"
        "for words in ('list', 'list --json', 'list ppo', '--help', 'train ppo --help'):\n"
        "    try:\n"
        "        main(words.split())\n"
        "    except SystemExit:\n"
        "        pass\n"
        "heavy = {'jax', 'flax', 'optax', 'rlax', 'gymnasium', 'matplotlib', 'rich'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    root = ROOT
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


# Benchmarks


@pytest.fixture
def benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("runnel.cli.showing_commands.BENCHMARKS", tmp_path)
    (tmp_path / "fast.py").write_text('"""How fast it is.\n\nMore."""\nopen(__file__ + ".ran", "w")\n')
    (tmp_path / "broken.py").write_text('"""Fails."""\nraise SystemExit(3)\n')
    (tmp_path / "_shared.py").write_text("")
    return tmp_path


def test_benchmarks_are_named_and_run(runnel: Any, benchmarks: Path) -> None:
    assert runnel("bench") == (0, "  broken  Fails.\n  fast    How fast it is.\n", "")
    assert runnel("bench", "broken", "fast").status == 3
    assert (benchmarks / "fast.py.ran").exists()
    assert "did you mean 'fast'?" in runnel("bench", "fest").err


def test_without_a_checkout_there_are_no_benchmarks(
    runnel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runnel.cli.showing_commands.BENCHMARKS", tmp_path / "nowhere")
    assert runnel("bench").status == 2


# Real processes


def test_a_mistake_in_a_process_has_no_traceback() -> None:
    _, err = (process := spawn("train", "pop", "CartPole-v1")).communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in err
    assert err.startswith("runnel train: ")


def test_output_without_a_reader_is_no_error() -> None:
    process = spawn("list")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_cleanly_and_goes_on(runnel: Any, number: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = spawn(*TRAIN, "--steps", "1_000_000_000", "--run-dir", run)
    deadline = time.monotonic() + 120
    while not read_metrics(run) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == ""
    assert f"runnel resume {run}" in out
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "interrupted"
    more = result["env_steps"] + 64
    assert runnel("resume", run, "--steps", str(more), "--quiet").status == 0
    resumed = json.loads((run / "result.json").read_text())
    assert resumed["status"] == "finished"
    assert resumed["env_steps"] == more


LARGE = "1" + "0" * 400
DEEP = "[" * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "ppo", "CartPole-v1", "--steps", LARGE], "--steps: found 1000"),
        (["train", "ppo", "CartPole-v1", "--seed", LARGE], "--seed: found 1000"),
        (["plan", "ppo", "CartPole-v1", "--envs", LARGE], "--envs: found 1000"),
        (["plan", "ppo", "CartPole-v1", "--set", f"learning_rate={LARGE}"], "learning_rate=1000"),
        (["plan", "ppo", "CartPole-v1", "--set", f"unroll={LARGE * 20}"], "unroll=1000"),
        (["plan", "ppo", "CartPole-v1", "--set", f"env.x={DEEP}"], "brackets in brackets"),
        (["plan", "ppo", "CartPole-v1", "--set", f"hidden={DEEP}"], "hidden=[[["),
        (["plan", "ppo", "CartPole-v1", "--set", "env.name=3"], "CartPole-v1 has no setting 'name'"),
        (["plan", "ppo", "CartPole-v1", "--set", "env.id=3"], "CartPole-v1 has no setting 'id'"),
        (["plan", "dqn", "CartPole-v1", "--set", "capacity=9999999999"], "at most 2,147,483,647 items, found"),
        (["train", "dqn", "CartPole-v1", "--set", "capacity=2000000000"], "replays of 82 GiB, and this machine has"),
    ],
)
def test_values_that_no_run_can_have_are_refused_in_a_line(
    runnel: Any, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("runnel.system.limits.memory_bytes", lambda: 64 * 2**30)
    monkeypatch.chdir(tmp_path)
    ended = runnel(*words)
    assert ended.status == 2
    assert said in ended.err
    assert len(ended.err) < 600


def test_an_environment_of_ones_own_may_have_settings_called_name_and_id() -> None:
    from runnel.envs import make

    assert make("toys:named", name="a", id="b").spec.name == "a-b"


@pytest.mark.parametrize(
    ("text", "keywords", "shown"),
    [
        ("envs=10 does not divide; use envs=8 or 12", ["envs"], "--envs 10 does not divide; use --envs 8 or 12"),
        ("steps=0: found 0, expected more", ["steps"], "--steps 0: found 0, expected more"),
        ("choose another run_dir=", ["run_dir"], "choose another --run-dir"),
        ("hang_after_s=0.0: found 0.0", ["hang_after_s"], "--hang-after 0.0: found 0.0"),
        ("train it with distribution='inline', or", ["distribution"], "train it with --distribution inline, or"),
        ("found 'seed=3' in a file", [], "found 'seed=3' in a file"),
    ],
)
def test_an_error_speaks_of_keywords_in_python_and_of_flags_here(text: str, keywords: list[str], shown: str) -> None:
    assert arguments.in_flags(UserError(text, keywords=keywords)) == shown


EARLY = """
import sys

class Interrupted:
    def find_spec(self, name, *_):
        if name == "runnel.cli.arguments":  # one of the modules that the command line imports
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from runnel.__main__ import main
sys.exit(main())
"""


def test_an_interrupt_while_modules_are_imported_ends_without_a_traceback():
    ended = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"runnel": "runnel.__main__:main"}
