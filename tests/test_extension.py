"""Runnel is extended from outside: the sink, launcher and transport of docs/extend.md, and `lagging.Lag`, train."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aging import Ages
from kill_runs import assert_same, final_state
from lagging import Lagging
from paths import EXAMPLES, ROOT, TESTS

import runnel
from runnel.cli.main import main
from runnel.distributions.coarse import Coarse
from runnel.errors import UserError
from runnel.recording.metrics import read_metrics
from runnel.transport.interface import import_path, load

SETTINGS = {"unroll": 16, "hidden": (16,), "minibatches": 2, "epochs": 1}


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def train(run_dir: Path, **given: Any) -> dict[str, Any]:
    return runnel.train(
        "ppo", "CartPole-v1", Coarse(actors=2), envs=8, steps=512, seed=3, settings=SETTINGS, run_dir=run_dir,
        quiet=True, **given,
    ).result  # fmt: skip


class Collected:
    """A sink that keeps what it receives."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.closed = 0

    def write(self, record: dict[str, Any]) -> None:
        assert not self.closed
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1


def test_a_sink_from_outside_receives_what_metrics_jsonl_holds(tmp_path: Path) -> None:
    sink = Collected()
    runnel.train(
        "ppo", "CartPole-v1", "inline", envs=8, steps=512, settings=SETTINGS, run_dir=tmp_path, quiet=True, sinks=[sink]
    )
    assert sink.closed == 1
    assert sink.records == read_metrics(tmp_path)
    assert sink.records[-1]["env_steps"] == 512


@pytest.fixture(scope="module")
def over_an_agent(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A run with a launcher from outside: its result and its directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        run_dir = tmp_path_factory.mktemp("launcher") / "run"
        return train(run_dir, launcher="one_agent:OneAgent"), run_dir


def test_a_launcher_from_outside_starts_the_workers(over_an_agent: Any) -> None:
    result, _ = over_an_agent
    assert result["status"] == "finished"
    assert {worker["host"] for worker in result["workers"]} == {"only"}


def test_what_makes_no_launcher_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = "train ppo CartPole-v1 --distribution coarse --launcher one_agent:{} --steps 512 --run-dir {}"
    assert main(words.format("AGENT", tmp_path / "a").split()) != 0
    assert "found a tuple; expected a callable that returns a HostLauncher" in capsys.readouterr().err
    assert main(words.format("subprocess.Popen", tmp_path / "a").split()) != 0
    assert "leads through the module subprocess" in capsys.readouterr().err


class Watch:
    """Notes which processes have memory of a directory mapped, as long as it is entered."""

    def __init__(self, directory: Path):
        self.directory, self.found = directory, dict[int, str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for process, maps in _maps():
                if str(self.directory) in maps:
                    self.found[process] = maps


def _maps() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            yield int(process.name), (process / "maps").read_text()
        except OSError:  # it has ended, or is another user's
            continue


def test_a_transport_from_outside_carries_streams_and_parameters(
    over_an_agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setenv("MEMORY_DIRECTORY", str(memory))
    with Watch(memory) as watch:
        train(tmp_path / "run", transport="file_transport:TRANSPORT")
    assert len(watch.found) == 4  # this process, two actors and a learner
    assert not any("memfd:runnel-stream" in maps or "memfd:runnel-store" in maps for maps in watch.found.values())
    assert not list(memory.iterdir())
    assert_same(final_state(tmp_path / "run"), final_state(over_an_agent[1]))  # which used shared memory


def test_the_conformance_tests_run_against_a_transport_from_outside() -> None:
    tests = [str(TESTS / "transport" / name) for name in ("test_streams.py", "test_stream_ends.py")]
    chosen = ["-k", "arrives or waits or killed", "--transport", "file_transport:TRANSPORT", "-rA"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *tests, *chosen], capture_output=True, text=True, env=environ, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = "::test_a_writer_is_killed_and_replaced[file_transport:TRANSPORT-half-written]"
    assert any(line.startswith("PASSED") and line.endswith(passed) for line in ran.stdout.splitlines())
    assert "[shared memory" not in ran.stdout


def test_a_synchronisation_from_outside_bounds_the_staleness(tmp_path: Path) -> None:
    """To what it says, which is less than the algorithm tolerates."""
    algorithm = Ages(bound=8, work=50_000)
    run = runnel.train(
        algorithm, "toys:Corridor", Lagging(updates=2), envs=4, steps=60 * 2 * 4, run_dir=tmp_path, quiet=True
    )
    assert run.result["status"] == "finished"
    assert 0 < int(run.states["agent"].oldest) == run.result["staleness_max"] <= 2
    plan = runnel.build(algorithm, "toys:Corridor", Lagging(updates=2), envs=4).plan
    assert [cut.synchronisation for cut in plan.cuts if cut.node == "rollout"] == ["lag of 2"]


def test_a_transport_is_named_by_its_import_path() -> None:
    from file_transport import TRANSPORT  # pyright: ignore[reportMissingImports]

    assert import_path(None) == "runnel.transport.shared_memory:TRANSPORT"
    assert import_path(TRANSPORT) == import_path("file_transport:TRANSPORT") == "file_transport:TRANSPORT"
    assert load(import_path(TRANSPORT)) is TRANSPORT


def test_what_is_no_transport_is_refused() -> None:
    from dataclasses import replace

    from file_transport import TRANSPORT  # pyright: ignore[reportMissingImports]

    with pytest.raises(UserError, match=r"a function; expected a runnel\.transport\.interface\.Transport"):
        import_path("file_transport:memory")
    with pytest.raises(UserError, match="assign it to a name in a module"):
        import_path(replace(TRANSPORT))
