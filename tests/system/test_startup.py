"""Nobody waits before a silent screen: what takes long in starting says so."""

import io
import itertools
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from toys import Corridor, Reinforce

import runnel
from runnel.reporting.live_view import LiveView
from runnel.system import startup


def until(condition: Any) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "EVERY_S", 0.02)


@pytest.mark.usefixtures("often")
def test_the_present_phase_is_printed_again_and_again_until_the_end() -> None:
    stream = io.StringIO()
    with startup.starting(stream=stream, first="importing"):
        until(lambda: stream.getvalue().count("importing (0 s)") >= 2)
        startup.phase("compiling")
        until(lambda: "compiling (" in stream.getvalue())
        startup.end()
        before = stream.getvalue()
        startup.phase("training")
        time.sleep(0.1)
    assert stream.getvalue() == before


@pytest.mark.usefixtures("often")
def test_what_is_one_phase_for_the_user_hides_its_own_phases() -> None:
    stream = io.StringIO()
    with startup.starting(stream=stream, first="compiling"):
        with startup.during("evaluating at 0 steps"):
            startup.phase("tracing")
            until(lambda: stream.getvalue().count("evaluating at 0 steps (") >= 2)
            within = stream.getvalue()
        until(lambda: "compiling (" in stream.getvalue()[len(within) :])
    assert "tracing" not in stream.getvalue()


@dataclass(frozen=True)
class SlowlyEvaluated(Reinforce):
    """An algorithm that takes long to trace where it does not explore."""

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Any:
        time.sleep(0.0 if explore else 0.3)
        return super().act(params, observation, memory, key, explore)


@pytest.mark.usefixtures("often")
def test_a_slow_first_evaluation_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runnel.train(
        SlowlyEvaluated(unroll=8), Corridor, "inline", envs=2, steps=64, run_dir=tmp_path / "run", eval_every=64
    )  # fmt: skip
    assert "\nevaluating at 0 steps (" in capsys.readouterr().out


@pytest.mark.usefixtures("often")
def test_inside_another_the_outer_one_prints() -> None:
    outer, inner = io.StringIO(), io.StringIO()
    with startup.starting(stream=outer), startup.starting(stream=inner):
        startup.phase("building")
        until(lambda: "building" in outer.getvalue())
    assert inner.getvalue() == ""


@pytest.mark.usefixtures("often")
def test_quiet_is_quiet_and_outside_nothing_is_said() -> None:
    stream = io.StringIO()
    with startup.starting(quiet=True, stream=stream):
        startup.phase("building")
        startup.through(lambda text: pytest.fail(text))
        time.sleep(0.1)
    assert stream.getvalue() == ""


def test_where_others_print_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "EVERY_S", 0.3)
    stream = io.StringIO()
    with startup.starting(stream=stream):
        view = LiveView(100, title="a run", stream=io.StringIO())
        for _ in range(60):
            view.note("checkpoint")
            time.sleep(0.01)
    assert stream.getvalue() == ""


class Slow(Corridor):
    """An environment that takes long to make."""

    def __init__(self) -> None:
        time.sleep(0.3)


@dataclass(frozen=True)
class SlowReinforce(Reinforce):
    """An algorithm that takes long to trace."""

    def init(self, key: Any, spec: Any) -> Any:
        time.sleep(0.3)
        return super().init(key, spec)


@pytest.mark.usefixtures("often")
def test_a_slow_start_says_what_it_is_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = {"envs": 2, "steps": 64, "run_dir": tmp_path / "run"}
    runnel.train(SlowReinforce(unroll=8), Slow, "inline", **kept)
    lines = capsys.readouterr().out.splitlines()
    phases = [line for line in lines if line.endswith(" s)")]
    for phase in ("making the environment ", "tracing SlowReinforce (", "making environments and compiling ("):
        assert any(line.startswith(phase) for line in phases), phases
    steps = next(i for i, line in enumerate(lines) if "/64 steps" in line)
    assert not any(line in phases for line in lines[steps:])


@pytest.mark.usefixtures("often")
def test_a_phase_may_be_asked_for_when_it_is_shown() -> None:
    stream, phases = io.StringIO(), iter(["making"])
    with startup.starting(stream=stream):
        startup.phase(lambda: next(phases, "waits for step (env.py, line 7)"))
        until(lambda: "making (" in stream.getvalue())
        until(lambda: "waits for step (env.py, line 7) (" in stream.getvalue())


def test_the_command_line_says_so_before_it_imports_anything_large(tmp_path: Path) -> None:
    code = (
        "import sys, time, runnel.system.startup as startup\n"
        "startup.EVERY_S = 0.02\n"
        "class Late:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'jax':\n"
        "            time.sleep(0.3)\n"
        "sys.meta_path.insert(0, Late())\n"
        "from runnel.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", code, "plan", "ppo", "CartPole-v1", "--format", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 0
    assert "importing JAX (" in ended.stderr
    assert ended.stdout.startswith("{")


@pytest.mark.slow
def test_a_start_of_many_seconds_is_not_silent_for_five(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import time\nimport gymnasium\n\ndef make():\n    time.sleep(2)\n    return gymnasium.make('CartPole-v1')\n"
    )
    command = [sys.executable, "-m", "runnel", "train", "ppo", "late:make", "--envs", "8", "--steps", "1024"]
    times, lines = [time.monotonic()], []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            times.append(time.monotonic())
            lines.append(line)
    assert process.returncode == 0
    assert max(after - before for before, after in itertools.pairwise(times)) < 5
    assert any("making environments and compiling" in line for line in lines), lines
