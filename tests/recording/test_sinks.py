"""Sinks of a user's own receive what `metrics.jsonl` does, and cannot end a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.recording.events import EventLog, read_events
from runnel.recording.metrics import MetricsLog, read_metrics


class Kept:
    """Receives records, and inherits from nothing."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = 0

    def write(self, record: dict[str, Any]) -> None:
        assert not self.closed
        self.records.append(dict(record))
        record.clear()  # its own copy

    def close(self) -> None:
        self.closed += 1


class Rewindable(Kept):
    def rewind(self, env_steps: int) -> None:
        self.records = [record for record in self.records if record["env_steps"] <= env_steps]


class Failing(Kept):
    """Fails at its first record, and again when it is closed."""

    def write(self, record: dict[str, Any]) -> None:
        super().write(record)
        if len(self.records) == 1:
            raise ConnectionError("the server is away")

    def close(self) -> None:
        super().close()
        raise SystemExit(3)


def train(run_dir: Path, **options: Any) -> runnel.Run:
    return runnel.train("reinforce", "CartPole-v1", envs=2, steps=512, run_dir=run_dir, quiet=True, **options)


def test_a_sink_receives_the_records_of_a_run_and_of_its_continuation(tmp_path: Path) -> None:
    first, second, again = Kept(), Kept(), Kept()
    train(tmp_path / "run", sinks=[first, second])
    assert first.closed == second.closed == 1
    assert first.records == second.records
    written = read_metrics(tmp_path / "run")
    assert first.records == [{name: value for name, value in line.items() if name != "curve"} for line in written]
    assert "sinks" not in json.loads((tmp_path / "run" / "config.json").read_text())
    runnel.resume(tmp_path / "run", steps=1024, quiet=True, sinks=[again])
    assert again.closed == 1
    assert first.records[-1]["env_steps"] < again.records[-1]["env_steps"] >= 1024


def test_a_sink_that_fails_ends_no_run_and_is_recorded(tmp_path: Path) -> None:
    failing, kept = Failing(), Kept()
    run = train(tmp_path / "run", sinks=[failing, kept])
    assert run.result["status"] == "finished"
    assert failing.closed == kept.closed == 1
    assert len(failing.records) == len(kept.records) > 1, "later records are tried again"
    reasons = [event["reason"] for event in read_events(tmp_path / "run") if event["event"] == "metrics_failed"]
    assert reasons == [
        "cannot write sink 0 (Failing): the server is away",
        "sink 0 (Failing) can be written again",
        "cannot close sink 0 (Failing): 3",
    ]


def test_only_a_sink_that_can_is_rewound(tmp_path: Path) -> None:
    able, unable, time = Rewindable(), Kept(), iter(range(100))
    events = EventLog(tmp_path)
    with MetricsLog(tmp_path, events=events, sinks=[able, unable], clock=lambda: float(next(time))) as log:
        for env_steps in (10, 20, 30):
            log.write({"env_steps": env_steps})
        log.rewind(20)
        log.write({"env_steps": 25})
    assert [record["env_steps"] for record in able.records] == [10, 20, 25]
    assert [record["env_steps"] for record in unable.records] == [10, 20, 30, 25]
    assert not read_events(tmp_path)


def test_a_sink_that_can_is_rewound_when_a_run_is_resumed(tmp_path: Path) -> None:
    able, unable = Rewindable(), Kept()
    for sink in (able, unable):
        sink.records = [{"env_steps": env_steps} for env_steps in (256, 512, 700)]  # 700: after the checkpoint
    train(tmp_path / "run")
    runnel.resume(tmp_path / "run", steps=1024, quiet=True, sinks=[able, unable])
    repeated = [record["env_steps"] for record in able.records]
    assert repeated[:2] == [256, 512]
    assert repeated == sorted(repeated)
    assert 700 not in repeated
    assert [record["env_steps"] for record in unable.records[:3]] == [256, 512, 700]


@pytest.mark.parametrize(
    ("sinks", "words"),
    [
        ([Kept], r"found the class Kept, expected an object; use Kept\(\)"),
        ([object()], r"found object, expected an object with write\(record\) and close\(\)"),
        (Kept(), r"found Kept, expected a list of sinks; use sinks=\[...\]"),
    ],
)
def test_what_is_no_sink_is_refused_before_anything_is_made(tmp_path: Path, sinks: Any, words: str) -> None:
    with pytest.raises(runnel.UserError, match=words):
        train(tmp_path / "run", sinks=sinks)
    assert not (tmp_path / "run").exists()
