"""What Prometheus reads of a run: over the port of a real one, while it trains."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from prometheus_client.parser import text_string_to_metric_families

import runnel
from runnel.reporting import metrics_server
from runnel.reporting.prometheus import ScrapedRun, families
from runnel.runtime.usage import StreamUsage, UsageReport, WorkerUsage

LABELS = re.compile(r'(\w+)=~?"')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read(port: int, path: str = "metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as answer:
        return answer.read().decode()


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], runnel.Run, int]:
    """The newest samples of a real run of several workers, the run, and the port that it had."""
    port, newest = free_port(), {}

    def look(progress: runnel.Progress) -> None:
        if progress.metrics:
            # A worker that has reported nothing since the last look is left out of this one.
            for name, rows in samples(read(port)).items():
                newest[name] = max(rows, newest.get(name, []), key=len)
            newest["dashboard"] = read(port, "grafana.json")

    run = runnel.train(
        "impala", "CartPole-v1", "async", actors=2, envs=8, steps=60_000, eval_every=20_000, eval_episodes=2, seed=3,
        settings={"unroll": 8, "hidden": (8,)}, run_dir=tmp_path_factory.mktemp("runs") / 'a "quoted" run',
        metrics_port=port, quiet=True, on_update=look, callback_every_s=0.0, eval_workers=0,
    )  # fmt: skip
    return newest, run, port


def test_a_run_is_read_while_it_trains(scraped: Any) -> None:
    found, run, port = scraped
    assert found["runnel_run_info"] == [
        (
            {"run": 'a "quoted" run', "algorithm": "impala", "environment": "CartPole-v1", "distribution": "async",
             "seed": "3", "version": runnel.__version__},
            1.0,
        )
    ]  # fmt: skip
    ((_, steps),) = found["runnel_env_steps_total"]
    assert 0 < steps <= run.result["env_steps"]
    assert found["runnel_target_env_steps"] == [({}, 60000.0)]
    assert found["runnel_restarts_total"] == [({}, 0.0)]
    assert {labels["fragment"] for labels, _ in found["runnel_worker_busy_ratio"]} == {"actor", "learner"}
    assert len(found["runnel_worker_busy_ratio"]) == 3
    assert all(0 <= busy <= 1 for _, busy in found["runnel_worker_busy_ratio"])
    assert "policy_loss" in {labels["metric"] for labels, _ in found["runnel_learn"]}
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), 5):
        pass  # the port is closed with the run
    assert "metrics_port" not in (run.run_dir / "config.json").read_text()


def test_every_expression_of_the_dashboard_is_of_what_a_run_exports(scraped: Any) -> None:
    found, *_ = scraped
    dashboard = json.loads(found["dashboard"])
    assert dashboard == json.loads(metrics_server.DASHBOARD.read_text())
    members = samples_of(ScrapedRun(members={"member-0": (8, 1.5)}, record={"env/is_success": 0.5, "learn/loss": 1.0}))
    known = {**members, **found}  # what a run of this environment, alone, has none of
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions += [variable["query"]["query"] for variable in dashboard["templating"]["list"][1:]]
    assert len(expressions) > 12
    for expression in expressions:
        names = re.findall(r"runnel_\w+", expression)
        assert names, expression
        assert set(names) <= known.keys(), expression
        labels = {label for name in names for values, _ in known[name] for label in values}
        by = " ".join(re.findall(r"by \((.*?)\)", expression))
        asked = {*LABELS.findall(expression), *re.findall(r"\w+", by)}
        assert asked - {"instance", "job"} <= labels, expression  # Prometheus itself adds these
    legends = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    every = {label for rows in members.values() for values, _ in rows for label in values}
    every |= {label for name, rows in found.items() if name != "dashboard" for values, _ in rows for label in values}
    assert {label for legend in legends for label in re.findall(r"{{(\w+)}}", legend)} <= every


def samples_of(snapshot: ScrapedRun) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Any:
            return families(snapshot)

    registry = CollectorRegistry()
    registry.register(Collector())  # type: ignore[arg-type]
    return samples(generate_latest(registry).decode())  # type: ignore[return-value]


def test_names_of_the_users_are_labels_whatever_they_are() -> None:
    record = {
        "mean_return": 1.5, "return/prey": 2.0, "learn/prey/loss": 0.5, "learn/a-b": 1.0, "learn/a_b": 2.0,
        'learn/"\n\\ é': 3.0, "env/is_success": None, "eval/return": 4.0, "eval/return/prey": 5.0, "more": 7,
        "busy/x": 1,
    }  # fmt: skip
    report = UsageReport(
        (WorkerUsage("actor-0", "actor", 0.25, host="b"), WorkerUsage("late", "actor")),
        (StreamUsage("actor", "learner", "unroll", 0.5, 10.0, 1.0),),
    )
    found = samples_of(ScrapedRun(record=record, report=report))
    assert found["runnel_mean_return"] == [({"group": ""}, 1.5), ({"group": "prey"}, 2.0)]
    assert found["runnel_learn"] == [
        ({"group": "prey", "metric": "loss"}, 0.5), ({"group": "", "metric": "a-b"}, 1.0),
        ({"group": "", "metric": "a_b"}, 2.0), ({"group": "", "metric": '"\n\\ é'}, 3.0),
    ]  # fmt: skip
    assert ({"group": "prey", "metric": "return"}, 5.0) in found["runnel_eval"]
    assert found["runnel_other"] == [({"metric": "more"}, 7.0)]
    assert "runnel_env" not in found
    assert found["runnel_worker_busy_ratio"] == [({"worker": "actor-0", "fragment": "actor", "host": "b"}, 0.25)]
    assert found["runnel_stream_fill_ratio"] == [({"source": "actor", "target": "learner", "kind": "unroll"}, 0.5)]


@pytest.mark.slow
def test_members_are_read_together_and_each(tmp_path: Path) -> None:
    port, read_while = free_port(), []

    def look() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError):
                read_while.append(samples(read(port)))

    over = threading.Event()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        members = runnel.train_members(
            "toys:Reinforce", "toys:Corridor", seeds=2, envs=8, steps=100_000, run_dir=tmp_path / "runs", quiet=True,
            settings={"unroll": 8}, metrics_port=port,
        )  # fmt: skip
    finally:
        over.set()
        thread.join()
    newest = next(found for found in reversed(read_while) if "runnel_member_env_steps_total" in found)
    steps = {labels["member"]: value for labels, value in newest["runnel_member_env_steps_total"]}
    assert set(steps) == {path.name for path in members.members}
    assert newest["runnel_env_steps_total"] == [({}, sum(steps.values()))]
    assert newest["runnel_target_env_steps"] == [({}, 200_000.0)]
    ((info, _),) = newest["runnel_run_info"]
    assert (info["run"], info["algorithm"], info["members"]) == ("runs", "reinforce", "2")
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), 5):
        pass


def test_a_run_directory_opens_no_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir, port = tmp_path / "run", free_port()
    runnel.train("reinforce", "CartPole-v1", envs=2, steps=128, run_dir=run_dir, quiet=True)
    config = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps({**config, "metrics_port": port, "metrics_address": "0.0.0.0"}))
    found = []

    def look(progress: runnel.Progress) -> None:
        with socket.socket() as probe:
            found.append(probe.connect_ex(("127.0.0.1", port)))

    runnel.resume(run_dir, steps=2_048, on_update=look, callback_every_s=0.0)
    assert found
    assert set(found) == {errno.ECONNREFUSED}
    assert "Prometheus" not in capsys.readouterr().out
    assert "metrics_port" not in (run_dir / "config.json").read_text()
    (tmp_path / "file.json").write_text(json.dumps({**config, "metrics_port": port}))
    refused = run_command(capsys, "train", "--config", tmp_path / "file.json", "--run-dir", tmp_path / "new")
    assert refused.status == 2
    assert "found 'metrics_port', which belongs to one process and is not taken from a file" in refused.err


def test_a_taken_port_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(runnel.UserError, match=rf"metrics_port={port}: found port {port} of 127.0.0.1, which "):
            runnel.train("ppo", "CartPole-v1", metrics_port=port, run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"metrics_port": 65536}, "expected a whole number from 0 to 65535"),
        ({"metrics_port": 0, "quiet": True}, "does not print the port"),
        ({"metrics_address": "0.0.0.0"}, "found it without metrics_port="),
        ({"metrics_port": 9100, "metrics_address": "no such host"}, "found no such address"),
        ({"metrics_port": 9100, "metrics_address": "a..b"}, "found no such address"),
        ({"metrics_port": 9100, "metrics_address": "203.0.113.7"}, "cannot be opened"),
    ],
)
def test_what_cannot_be_served_is_refused(asked: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(runnel.UserError, match=words):
        runnel.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", **asked)
    assert not (tmp_path / "run").exists()


def test_any_free_port_is_printed_and_loopback_is_not_left(capsys: pytest.CaptureFixture[str]) -> None:
    with metrics_server.serving(0):
        metrics_server.report({"env_steps": 5})
        printed = capsys.readouterr().out
        (url,) = re.findall(r"^metrics for Prometheus: (http://127.0.0.1:\d+/metrics)$", printed, re.M)
        port = int(url.split(":")[2].split("/")[0])
        assert samples(read(port))["runnel_env_steps_total"] == [({}, 5.0)]
        with pytest.raises(urllib.error.HTTPError):  # it takes no orders
            urllib.request.urlopen(urllib.request.Request(url, b"x", method="POST"), timeout=10)
    metrics_server.report({"env_steps": 6})  # nobody listens
    with metrics_server.serving(0, "0.0.0.0"):
        assert "to anyone who reaches that address" in capsys.readouterr().out


def test_silent_slow_and_numerous_clients_take_no_threads_from_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "REQUEST_S", 0.5)
    port = free_port()
    with metrics_server.serving(port, quiet=True):
        silent = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(metrics_server.MOST_REQUESTS + 4)]
        over = threading.Event()

        def trickle() -> None:
            while not over.wait(0.1):
                for client in silent[::2]:
                    with contextlib.suppress(OSError):
                        client.send(b"x")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            for client in silent:  # all are let go of: those that there is no room for at once, the others in time
                client.settimeout(20)
                with contextlib.suppress(ConnectionError):
                    assert client.recv(1) == b""
        finally:
            over.set()
            thread.join()
        for client in silent:
            client.close()
        assert "python" not in read(port)  # of this process nothing is told, and later clients are answered
