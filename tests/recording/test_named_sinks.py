"""Sinks by name: trackers, those of installed packages, and the user's own."""

from __future__ import annotations

import http.server
import json
import sys
import threading
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from paths import ROOT

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
    (place / "lacking.py").write_text("import nowhere_to_be_found\n")
    (place / "keeper-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: keeper\nVersion: 1.0\nProvides-Extra: lacking\n"
    )
    (place / "keeper-1.0.dist-info" / "entry_points.txt").write_text(
        "[runnel.sinks]\nkeeper = keeper:Kept\nabsent = keeper:Absent\nlacking = lacking:Kept\nlost = lacking:Kept\n"
        "trackio = keeper:Kept\n"
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
        (
            "lacking",
            "the sink lacking needs 'nowhere_to_be_found', which is not installed; run: pip install 'keeper[l",
        ),
        ("lost", "the sink lost of the installed package keeper cannot be imported: No module named 'nowhere_to_be_"),
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


def test_the_sinks_of_this_checkout_are_registered() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][named_sinks.GROUP]
    installed = metadata.distribution("runnel").entry_points.select(group=named_sinks.GROUP)
    assert {entry.name: entry.value for entry in installed} == declared, "install it again: pip install -e ."
    assert set(declared) <= set(metadata.metadata("runnel").get_all("Provides-Extra"))


@pytest.mark.parametrize("name", ["mlflow", "trackio"])
def test_a_tracker_that_is_not_installed_names_its_extra(
    name: str, own: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"runnel.recording.{name}_sink", raising=False)
    with pytest.raises(runnel.UserError, match=rf"needs '{name}', .*; run: pip install 'runnel\[{name}\]'"):
        train(tmp_path / "run", sinks=[name])
    with pytest.raises(runnel.UserError, match=r"use sinks=\['mlflow'\]"):
        train(tmp_path / "run", sinks="mlflow")
    assert not (tmp_path / "run").exists()


def test_an_installation_that_is_older_than_the_code_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(named_sinks, "offered", dict)
    with pytest.raises(runnel.UserError, match=r"Runnel's own are not registered: install it again, pip install -e \."):
        train(tmp_path / "run", sinks=["mlflow"])


CONFIG = {"environment": {"name": "CartPole-v1"}, "algorithm": {"settings": {"unroll": 16}}}


def two_commands(tracker: str, run_dir: Path) -> None:
    """What a run gives to a tracker, and then its continuation, which is a command of its own."""
    for steps in (256, 512):
        (sink,) = named_sinks.made([tracker], run_dir, CONFIG)
        sink.write({"env_steps": steps, "updates": steps // 16, "mean_return": None})
        sink.close()


@pytest.mark.filterwarnings("ignore")  # of MLflow's own use of its libraries
def test_mlflow_has_one_run_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    from runnel.recording import mlflow_sink

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tests")
    for name in mlflow_sink.PATIENCE:
        monkeypatch.setenv(name, "1")  # so that what the sink sets does not outlast the test
    two_commands("mlflow", tmp_path / "run")
    two_commands("mlflow", tmp_path / "other")
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("tests")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"run", "other"}
    assert runs["run"].info.status == "FINISHED"
    assert runs["run"].data.params == {"environment.name": "CartPole-v1", "algorithm.settings.unroll": "16"}
    assert runs["run"].data.metrics == {"env_steps": 512, "updates": 32}
    steps = [metric.step for metric in client.get_metric_history(runs["run"].info.run_id, "env_steps")]
    assert steps == [256, 512]


def test_a_record_waits_for_two_requests_to_a_server_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    from runnel.recording import mlflow_sink

    asked = []
    run = {"info": {"run_id": "a", "run_uuid": "a", "experiment_id": "1", "status": "RUNNING"}, "data": {}}

    class Failing(http.server.BaseHTTPRequestHandler):
        """Knows the run, and stores nothing."""

        def do_GET(self) -> None:
            self._answer({"experiment": {"experiment_id": "1", "name": "runnel", "lifecycle_stage": "active"}})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("log-batch"):
                asked.append(self.path)
                self.send_error(503)
            else:
                self._answer({"runs": [run], "run_info": run["info"]})

        def _answer(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    assert mlflow_sink.PATIENCE == {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    for name, value in mlflow_sink.PATIENCE.items():
        monkeypatch.setenv(name, value)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        sink = mlflow_sink.MlflowSink(tmp_path, {})
        with pytest.raises(mlflow.MlflowException, match="503"):
            sink.write({"env_steps": 1})
        server.shutdown()
        thread.join()
    assert [path.rpartition("/")[2] for path in asked] == ["log-batch", "log-batch"]


def test_trackio_has_one_run_for_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    monkeypatch.setenv("TRACKIO_PROJECT", "tests")
    from trackio.sqlite_storage import SQLiteStorage

    two_commands("trackio", tmp_path / "run")
    assert capsys.readouterr().out == ""
    (name,) = SQLiteStorage.get_runs("tests")
    assert name.startswith("run-")
    assert SQLiteStorage.get_run_config("tests", name)["environment"]["name"] == "CartPole-v1"
    assert [row["step"] for row in SQLiteStorage.get_logs("tests", name)] == [256, 512]
