"""Records of a run: the content of the file, however the run ended."""

import json
import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paths import ROOT
from toys import Reinforce

import runnel
from runnel.errors import UserError
from runnel.recording import metrics, sinks
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.files import write_json_atomically
from runnel.recording.metrics import MetricsLog, last_metrics, read_metrics


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(run_dir: Path) -> list[Any]:
    return [record["env_steps"] for record in read_metrics(run_dir)]


def test_the_file_grows_by_a_line_a_second_and_has_the_last_record(tmp_path: Path) -> None:
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        for step in range(19):
            log.write({"env_steps": step})
            clock.now += 0.125
    assert steps(tmp_path) == [0, 8, 16, 18]


def test_a_line_is_there_as_soon_as_it_is_written(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write({"env_steps": 1})
        assert steps(tmp_path) == [1]
    assert steps(tmp_path) == [1]


def test_numbers_of_any_kind_become_valid_json(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.write(
            {
                "env_steps": np.int64(3),
                "mean_return": None,
                "learn/loss": np.float32(0.5),
                "learn/a": np.nan,
                "b": -np.inf,
            }
        )
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(line, parse_constant=refuse)
    assert record == {"env_steps": 3, "mean_return": None, "learn/loss": 0.5, "learn/a": None, "b": None}


def test_resuming_drops_what_will_be_made_again(tmp_path: Path) -> None:
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        for step in (10, 20, 30):
            log.write({"env_steps": step})
            clock.now += 1
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 4')  # killed while writing
    with MetricsLog(tmp_path, keep_until_env_steps=20) as log:
        assert steps(tmp_path) == [10, 20]
        log.write({"env_steps": 25})
    assert steps(tmp_path) == [10, 20, 25]
    assert not list(tmp_path.glob(".*"))


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_st')
    assert steps(tmp_path) == [1]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_st\n{"env_steps": 3}\n')
    with pytest.raises(UserError, match="line 2 is no record"):
        read_metrics(tmp_path)


def test_no_file_is_no_records(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_the_newest_record_is_found_without_reading_the_others(tmp_path: Path) -> None:
    assert last_metrics(tmp_path) == {}
    path = tmp_path / metrics.FILE
    path.write_bytes(b"no record\n" + b'{"env_steps": 1}\n' * 10_000 + b'{"env_steps": 2}\n{"env_ste')
    assert last_metrics(tmp_path) == {"env_steps": 2}
    path.write_bytes(b'{"env_steps": 3}\n')
    assert last_metrics(tmp_path) == {"env_steps": 3}


def test_tensorboard_has_the_same_curves(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        for step in (10, 20, 30):
            log.write({"env_steps": step, "mean_return": 2.0 * step, "learn/loss": None})
            clock.now += 1
    with MetricsLog(tmp_path, keep_until_env_steps=20, clock=clock) as log:
        log.write({"env_steps": 25, "mean_return": 50.0})
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert events.Tags()["scalars"] == ["run/mean_return"]
    assert [(e.step, e.value) for e in events.Scalars("run/mean_return")] == [
        (10, 20.0),
        (20, 40.0),
        (25, 50.0),
    ]


def lines_of(seconds: float, an_age: int) -> float:
    """A line a second, until that would be more than `an_age` in the time that the run has taken so far."""
    return an_age * (1 + math.log(seconds / an_age))


def test_a_run_of_a_month_has_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    month = 30 * 24 * 3600.0
    assert lines_of(month, metrics.LINES_AN_AGE) < 30_000
    monkeypatch.setattr(metrics, "LINES_AN_AGE", 60)  # as many would take long
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        while clock.now < month:
            log.write({"env_steps": int(clock.now), "wall_seconds": clock.now})
            clock.now += max(1.0, clock.now / 60) / 4
    assert 0.8 < len(read_metrics(tmp_path)) / lines_of(month, 60) <= 1.0


def test_a_resumed_run_is_as_old_as_it_says(tmp_path: Path) -> None:
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        for step in range(100):
            log.write({"env_steps": step, "wall_seconds": 36_000 + clock.now})
            clock.now += 1
    assert steps(tmp_path) == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


def test_a_line_carries_few_points_evenly(tmp_path: Path) -> None:
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        log.write({"env_steps": 0, "mean_return": 0.0})
        for step in range(1, 1001):
            log.write({"env_steps": step, "mean_return": float(step)})
    *_, last = read_metrics(tmp_path)
    curve: Any = last["curve"]
    assert metrics.CURVE_POINTS / 2 <= len(curve) <= metrics.CURVE_POINTS
    assert len({second[0] - first[0] for first, second in pairwise(curve)}) == 1
    assert (curve[0], last["env_steps"]) == ([1, 1.0], 1000)
    assert all(point[0] < 1000 for point in curve)


def test_going_back_drops_what_came_later(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    clock = Clock()
    with MetricsLog(tmp_path, clock=clock) as log:
        for step in (10, 20, 30):
            log.write({"env_steps": step, "mean_return": 1.0 * step})
            clock.now += 1
        clock.now -= 0.5
        log.write({"env_steps": 35, "mean_return": 35.0})  # waits
        log.rewind(20)
        assert steps(tmp_path) == [10, 20]
        log.write({"env_steps": 21, "mean_return": 2.0})
        clock.now += 1
        log.write({"env_steps": 30, "mean_return": 3.0})
    assert steps(tmp_path) == [10, 20, 30]
    assert read_metrics(tmp_path)[-1]["curve"] == [[21, 2.0]]
    events = accumulator.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("run/mean_return")] == [(10, 10.0), (20, 20.0), (30, 3.0)]


def test_a_full_disk_is_reported_plainly() -> None:
    with pytest.raises(UserError, match=r"cannot write /dev/full/metrics.jsonl: Not a directory"):
        MetricsLog("/dev/full")


def test_a_json_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json_atomically(path, {"a": float("nan"), "b": (1, np.float32(2.0)), "c": Path("x")})
    assert json.loads(path.read_text()) == {"a": None, "b": [1, 2.0], "c": "x"}
    with pytest.raises(UserError, match=r"cannot write .*: No such file"):
        write_json_atomically(tmp_path / "nowhere" / "result.json", {})
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


class FakeWandB(ModuleType):
    """Weights & Biases, as much of it as is used."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []

    def init(self, **kwargs: Any) -> "FakeWandB":
        self.started.append(kwargs)
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "env_steps")

    def log(self, record: dict[str, Any]) -> None:
        self.logged.append(record)

    def finish(self) -> None: ...


def test_wandb_shows_a_run_and_its_continuation_on_one_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(sinks, "check_wandb", lambda: None)
    for keep in (None, 1):
        with MetricsLog(tmp_path, keep_until_env_steps=keep, wandb={"seed": 3}) as log:
            log.write({"env_steps": 1, "mean_return": None})
    assert [start["config"] for start in fake.started] == [{"seed": 3}] * 2
    assert len({start["id"] for start in fake.started}) == 1
    assert fake.logged == [{"env_steps": 1}] * 2


def test_evaluations_reach_tensorboard_and_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandB())
    monkeypatch.setattr(sinks, "check_wandb", lambda: None)
    monkeypatch.setattr("runnel.execution.training.check_wandb", lambda: None)
    runnel.train(
        Reinforce(), "toys:Corridor", "inline", envs=4, steps=128, eval_every=64, eval_episodes=3, wandb=True,
        quiet=True, run_dir=tmp_path / "run",
    )  # fmt: skip
    last = read_evaluations(tmp_path / "run")[-1]
    wanted = {"eval/return": last["mean_return"], "eval/length": last["mean_length"], "eval/env_steps": 128}
    events = accumulator.EventAccumulator(str(tmp_path / "run")).Reload()
    for name, value in wanted.items():
        assert fake.logged[-1][name] == pytest.approx(value)
        newest = events.Scalars(name)[-1]
        assert (newest.step, newest.value) == (128, pytest.approx(value))


@pytest.mark.parametrize("planted", ["wandb/settings", ".wandb/settings"])
def test_settings_of_wandb_in_a_run_directory_are_refused(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say where the user's key is sent."""
    monkeypatch.setitem(sys.modules, "wandb", fake := FakeWandB())
    monkeypatch.setattr(sinks, "check_wandb", lambda: None)
    (tmp_path / planted).parent.mkdir()
    (tmp_path / planted).write_text("[default]\nbase_url = http://127.0.0.1:9\n")
    monkeypatch.chdir(tmp_path)
    MetricsLog(tmp_path, wandb={}).close()  # of the user's own directory: as W&B has it
    (tmp_path / "config.json").write_text('{"algorithm": {}, "distribution": {}}')
    with pytest.raises(UserError, match="start from another directory"):
        MetricsLog(tmp_path, wandb={})
    assert len(fake.started) == 1


def test_wandb_that_is_not_installed_is_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'runnel\[wandb\]'"):
        MetricsLog(tmp_path, wandb={})
    assert not list(tmp_path.iterdir())


def test_wandb_itself_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    # In a process of its own: W&B leaves threads and warnings behind.
    code = f"from runnel.recording.metrics import MetricsLog; MetricsLog({str(tmp_path)!r}, wandb={{}}).close()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
    assert list(tmp_path.glob("wandb/offline-run-*"))
