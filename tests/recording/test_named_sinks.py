"""Sinks by name: trackers, those of installed packages, and the user's own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run_command

import runnel
from runnel.recording import named_sinks
from runnel.recording.metrics import read_metrics

OWN = '''
"""A sink that keeps what it is given in a file."""
import json

class Kept:
    def __init__(self, run_dir, config):
        self.file = open(f"{run_dir}.kept", "a")
        print(json.dumps({"begun": config["environment"]["name"]}), file=self.file)

    def write(self, record):
        print(json.dumps(record), file=self.file)

    def close(self):
        self.file.close()

def broken(run_dir, config):
    raise ConnectionError("the server is away.\\nAnd more.")

def wrong(run_dir, config):
    return 3

NUMBER = 3
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that is installed, with a sink behind an entry point; its name."""
    place = tmp_path / "site"
    (place / "keeper-1.0.dist-info").mkdir(parents=True)
    (place / "keeper.py").write_text(OWN)
    (place / "keeper-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: keeper\nVersion: 1.0\n")
    (place / "keeper-1.0.dist-info" / "entry_points.txt").write_text(
        "[runnel.sinks]\nkeeper = keeper:Kept\nabsent = keeper:Absent\n"
    )
    monkeypatch.syspath_prepend(place)
    named_sinks.offered.cache_clear()
    yield "keeper"  # type: ignore[misc]
    named_sinks.offered.cache_clear()
    sys.modules.pop("keeper", None)


def train(run_dir: Path, **options: Any) -> runnel.Run:
    return runnel.train("reinforce", "CartPole-v1", envs=2, steps=256, run_dir=run_dir, quiet=True, **options)


def kept(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(f"{run_dir}.kept").read_text().splitlines()]


def test_a_sink_of_an_installed_package_receives_a_run_and_its_continuation(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    words = ("train", "reinforce", "CartPole-v1", "--envs", 2, "--steps", 256, "--run-dir", run_dir, "--quiet")
    assert run_command(capsys, *words, "--sink", own) == (0, "", "")
    begun, *records = kept(run_dir)
    assert begun == {"begun": "CartPole-v1"}
    assert records == [{k: v for k, v in line.items() if k != "curve"} for line in read_metrics(run_dir)]
    assert own not in (run_dir / "config.json").read_text()
    assert run_command(capsys, "resume", run_dir, "--steps", 512, "--quiet").status == 0
    assert len(kept(run_dir)) == 1 + len(records), "a sink is of one command"
    assert run_command(capsys, "resume", run_dir, "--steps", 768, "--quiet", "--sink", "keeper:Kept").status == 0
    assert kept(run_dir)[-1]["env_steps"] >= 768


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ("keepr", "there is no sink 'keepr'; did you mean 'keeper'?"),
        ("absent", "the sink absent of the installed package keeper cannot be imported: module 'keeper' has no attr"),
        ("keeper:NUMBER", "the sink keeper:NUMBER is an int; expected a callable that takes a run directory and its"),
        ("keeper:nothing", "'keeper' has no 'nothing'"),
        ("keeper:broken", "the sink keeper:broken cannot start: the server is away; correct that"),
        ("keeper:wrong", "the sink keeper:wrong returned an int; expected an object with write"),
    ],
)
def test_what_is_no_sink_ends_the_command_before_training(sink: str, words: str, own: str, tmp_path: Path) -> None:
    with pytest.raises(runnel.UserError) as caught:
        train(tmp_path / "run", sinks=[sink])
    assert str(caught.value).startswith(words)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_tracker_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(named_sinks, "find_spec", lambda package: None)
    for name, shipped in named_sinks.SHIPPED.items():
        if shipped.package:
            with pytest.raises(runnel.UserError, match=rf"pip install 'runnel\[{shipped.extra}\]'"):
                train(tmp_path / "run", sinks=[name])
    with pytest.raises(runnel.UserError, match=r"use sinks=\['mlflow'\]"):
        train(tmp_path / "run", sinks="mlflow")
    assert not (tmp_path / "run").exists()


def test_a_sink_that_ships_may_need_no_package(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_sinks, "SHIPPED", {"kept": named_sinks.ShippedSink(f"{own}:Kept")})
    named_sinks.made(["kept"], tmp_path / "run", {"environment": {"name": "CartPole-v1"}})[0].close()
    assert json.loads((tmp_path / "run.kept").read_text()) == {"begun": "CartPole-v1"}


@pytest.mark.filterwarnings("default")  # of MLflow's own use of its libraries
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="the extra mlflow is not installed")
def test_mlflow_has_one_run_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
    run_dir = tmp_path / "run"
    train(run_dir, sinks=["mlflow"])
    runnel.resume(run_dir, steps=512, quiet=True, sinks=["mlflow"])
    train(tmp_path / "other", sinks=["mlflow"])
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("tests")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"run", "other"}
    assert runs["run"].info.status == "FINISHED"
    config = json.loads((run_dir / "config.json").read_text())
    assert runs["run"].data.params["algorithm.settings.unroll"] == str(config["algorithm"]["settings"]["unroll"])
    steps = [metric.step for metric in client.get_metric_history(runs["run"].info.run_id, "env_steps")]
    assert max(steps) >= 512
    newest = read_metrics(run_dir)[-1]
    assert runs["run"].data.metrics["updates"] == newest["updates"]


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="the extra trackio is not installed")
def test_trackio_has_one_run_for_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    monkeypatch.setenv("TRACKIO_PROJECT", "tests")
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    run_dir = tmp_path / "run"
    train(run_dir, sinks=["trackio"])
    runnel.resume(run_dir, steps=512, quiet=True, sinks=["trackio"])
    assert capsys.readouterr().out == ""
    (name,) = SQLiteStorage.get_runs("tests")
    assert name.startswith("run-")
    assert SQLiteStorage.get_run_config("tests", name)["environment"]["name"] == "CartPole-v1"
    assert max(row["step"] for row in SQLiteStorage.get_logs("tests", name)) >= 512
