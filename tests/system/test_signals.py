"""A run that is asked to stop, or is killed, in any way leaves nothing behind and can be resumed."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT

from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics
from runnel.system import signals
from runnel.system.signals import Interrupted, StopRequest

MARK = "RUNNEL_TEST_RUN"
SMALL = ["--envs", "4", "--set", "unroll=8", "minibatches=2", "epochs=1", "hidden=(16,)"]
INLINE = ["ppo", "CartPole-v1", "--distribution", "inline", *SMALL]
COARSE = ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2", *SMALL]
ASYNC = ["impala", "CartPole-v1", "--distribution", "async", "--actors", "2", "--envs", "4"]


@dataclass
class Started:
    """A running command, and how to find everything that it starts."""

    process: subprocess.Popen[str]
    mark: str
    run: Path

    def pids(self) -> list[int]:
        """Every process of it that still runs."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
        return found

    def names(self) -> dict[int, str]:
        named = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                named[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        return named

    def result(self) -> dict[str, Any]:
        return json.loads((self.run / "result.json").read_text())

    def under_way(self) -> bool:
        """Whether it trains and has a checkpoint."""
        assert self.process.poll() is None, "it ended before"
        return (self.run / "checkpoints" / "latest").exists() and bool(read_metrics(self.run))

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status."""
        self.out, self.err = self.process.communicate(timeout=seconds)
        return self.process.returncode


def until(done: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Under `nohup` SIGHUP is ignored, by the runs too; here they are to hear it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    begun: list[Started] = []

    def start(*words: Any, run: Path = tmp_path / "run", first: str = "pass", **kwargs: Any) -> Started:
        mark = uuid.uuid4().hex
        found = os.pathsep.join([str(ROOT), *sys.path])
        environ = {**os.environ, MARK: mark, "PYTHONPATH": found, "JAX_PLATFORMS": "cpu"}
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
        code = f"{first}; import sys; from runnel.cli.main import main; sys.exit(main())"
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=environ, text=True, **pipes)
        begun.append(Started(process, mark, run))
        return begun[-1]

    yield start
    for each in begun:
        for pid in each.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        each.process.communicate()


@pytest.fixture
def train(start: Callable[..., Started], tmp_path: Path) -> Callable[..., Started]:
    def train(words: list[str], *more: Any, **kwargs: Any) -> Started:
        steps = ["--steps", 1_000_000_000, "--checkpoint-every", 1, "--run-dir", tmp_path / "run"]
        return start("train", *words, *steps, *more, **kwargs)

    return train


def assert_goes_on(start: Callable[..., Started], run: Path) -> None:
    """Nothing of it runs any more, and `resume` trains to the end that it is given."""
    counters = json.loads((run / "checkpoints" / "latest" / "counters.json").read_text())
    more = counters["env_steps"] + 320
    resumed = start("resume", run, "--steps", more, "--quiet")
    assert resumed.wait(120) == 0, resumed.err
    assert resumed.result()["status"] == "finished"
    assert resumed.result()["env_steps"] >= more
    assert not resumed.pids()
    steps = [record["env_steps"] for record in read_metrics(run)]
    assert steps == sorted(steps)


def gone(started: Started) -> bool:
    return not started.pids()


# Asked once

ONCE = [
    pytest.param(INLINE, signal.SIGHUP, id="inline SIGHUP", marks=pytest.mark.slow),
    pytest.param(COARSE, signal.SIGTERM, id="coarse SIGTERM"),
    pytest.param(COARSE, signal.SIGINT, id="coarse SIGINT", marks=pytest.mark.slow),
    pytest.param(COARSE, signal.SIGHUP, id="coarse SIGHUP", marks=pytest.mark.slow),
    pytest.param(ASYNC, signal.SIGTERM, id="async SIGTERM", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("words", "number"), ONCE)
def test_asked_once_it_ends_with_a_checkpoint(start: Any, train: Any, words: list[str], number: int) -> None:
    run = train(words)
    until(run.under_way)
    run.process.send_signal(number)
    assert run.wait() == 0, run.err
    assert gone(run)
    assert run.err == ""
    assert run.result()["status"] == "interrupted"
    assert f"runnel resume {run.run}" in run.out
    counters = json.loads((run.run / "checkpoints" / "latest" / "counters.json").read_text())
    assert counters["env_steps"] == run.result()["env_steps"]
    assert [e["reason"] for e in read_events(run.run) if e["event"] == "interrupted"] == [signal.Signals(number).name]
    assert_goes_on(start, run.run)


@pytest.mark.parametrize("words", [INLINE, pytest.param(COARSE, marks=pytest.mark.slow)], ids=["inline", "coarse"])
def test_asked_while_it_starts_it_ends_as_soon_as_it_can(train: Any, words: list[str]) -> None:
    run = train(words)
    until(lambda: (run.run / ("logs" if words is COARSE else "config.json")).exists())
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() == 0, run.err
    assert gone(run)
    result = run.result()
    assert result["status"] == "interrupted"
    assert result["env_steps"] or "nothing to resume" in run.out


@pytest.mark.slow
@pytest.mark.parametrize("words", [INLINE, COARSE], ids=["inline", "coarse"])
def test_asked_while_it_writes_a_checkpoint(start: Any, train: Any, words: list[str]) -> None:
    run = train(words, "--checkpoint-every", 0.05)
    until(run.under_way)
    until(lambda: list((run.run / "checkpoints").glob(".writing-*")))
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 0, run.err
    assert gone(run)
    assert not list((run.run / "checkpoints").glob(".writing-*"))
    assert_goes_on(start, run.run)


@pytest.mark.slow
def test_a_worker_that_does_not_come_to_rest_is_not_waited_for_long(start: Any, train: Any) -> None:
    run = train(COARSE)
    until(run.under_way)
    (learner,) = [pid for pid, name in run.names().items() if name.startswith("learner")]
    os.kill(learner, signal.SIGSTOP)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(90) in (0, 1), run.err  # 0 where it had come to rest before
    assert gone(run)
    assert run.result()["status"] == "interrupted"
    assert_goes_on(start, run.run)


# An environment that hangs, in the user's own process


def ways(fast: str) -> list[Any]:
    """How an environment hangs, and whether it also does when it is closed."""
    each = {"sleep": ("sleep", False), "spin": ("spin", False), "stuck": ("stuck", False), "close": ("sleep", True)}
    slow = pytest.mark.slow
    return [pytest.param(*way, id=name, marks=[] if name == fast else slow) for name, way in each.items()]


SOON = "from runnel.execution.supervision import hang_watch as w; w.SHOWN_S, w.END_S, w.LAST_S = 0.5, 2.0, 1.0"


def hanging(how: str, close: bool) -> list[str]:
    words = ["ppo", f"{ROOT}/tests/support/hanging.py:Hanging", "--envs", "4", "--set", "unroll=8", "minibatches=2"]
    return [*words, "epochs=1", "hidden=(16,)", f"env.how={how}", f"env.close_too={close}"]


@pytest.mark.parametrize(("how", "close"), ways(fast="stuck"))
def test_asked_once_while_its_environment_hangs(
    start: Any, train: Any, tmp_path: Path, how: str, close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_TEST_HANG", str(tmp_path / "hang"))
    run = train(hanging(how, close), "--checkpoint-every", 0.1, first=SOON)
    until(run.under_way)
    (tmp_path / "hang").touch()
    until((tmp_path / "hang").with_suffix(".hangs").exists)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait(60) == 1, run.err
    assert gone(run)
    result = run.result()
    assert result["status"] == "interrupted"
    assert run.out.count("SIGTERM") == 1
    assert "interrupted: SIGTERM; ending with a checkpoint; once more ends at once\n" in run.out
    assert "waits for hang (" in run.out
    assert 'hanging.py", line' in run.out  # the stack
    assert "did not return from hang (" in result["reason"]
    monkeypatch.delenv("RUNNEL_TEST_HANG")
    assert_goes_on(start, run.run)


@pytest.mark.slow
def test_asked_once_while_a_workers_environment_hangs(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_TEST_HANG", str(tmp_path / "hang"))
    words = [*hanging("sleep", False), "--distribution", "coarse", "--actors", "1"]
    soon = "from runnel.execution.supervision import supervisor as s; s.SHOWN_S, s.HURRY_S = 2, 4"
    run = train(words, "--checkpoint-every", 999, first=soon)
    until(lambda: (run.run / "metrics.jsonl").exists() and read_metrics(run.run))
    (tmp_path / "hang").touch()
    until((tmp_path / "hang").with_suffix(".hangs").exists)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(60) == 1, run.out
    assert gone(run)
    assert run.out.count("interrupted: SIGINT; ending with a checkpoint; once more ends at once\n") == 1
    (waits,) = [line for line in run.out.splitlines() if line.startswith("interrupted: waits for actor")]
    assert f", in hang ({ROOT}/tests/support/hanging.py, line " in waits
    assert waits.endswith("; ends without a checkpoint after 4 s; once more ends at once")
    assert "no pause within 4 s: waited for actor, in hang (" in run.result()["reason"]


@pytest.mark.slow
def test_asked_once_while_the_first_step_hangs(train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNEL_TEST_HANG", str(tmp_path / "hang"))
    (tmp_path / "hang").touch()
    run = train(hanging("sleep", False), first=f"{SOON}; from runnel.system import startup; startup.EVERY_S = 0.3")
    until((tmp_path / "hang").with_suffix(".hangs").exists)
    time.sleep(2.0)
    run.process.send_signal(signal.SIGINT)
    assert run.wait(60) == 1, run.err
    before, _, after = run.out.partition("interrupted: SIGINT; ending after the iteration in progress; once more ends")
    assert f"waits for hang ({ROOT}/tests/support/hanging.py, line " in before.splitlines()[-1]
    assert after
    assert not any(line.endswith(" s)") for line in after.splitlines())  # phases


@pytest.mark.parametrize(("how", "close"), ways(fast="sleep"))
def test_an_environment_that_hangs_ends_the_run(
    train: Any, tmp_path: Path, how: str, close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNNEL_TEST_HANG", str(tmp_path / "hang"))
    run = train(hanging(how, close), "--checkpoint-every", 0.1, "--hang-after", 2, first=SOON)
    until(run.under_way)
    (tmp_path / "hang").touch()
    assert run.wait(60) == 1, run.err
    assert gone(run)
    result = run.result()
    assert result["status"] == "failed"
    assert "the environment has not returned for 2 s (--hang-after), in hang (" in result["reason"]
    assert f"continue with `runnel resume {run.run}`" in run.err
    assert 'hanging.py", line' in run.out  # the stack


# Asked twice


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param((signal.SIGINT, signal.SIGINT), id="SIGINT SIGINT"),
        pytest.param((signal.SIGTERM, signal.SIGHUP), id="SIGTERM SIGHUP", marks=pytest.mark.slow),
    ],
)
def test_asked_twice_it_ends_at_once(start: Any, train: Any, numbers: tuple[int, int]) -> None:
    run = train(COARSE)
    until(run.under_way)
    # Its learner stands still, or it would have ended well before it could be asked again.
    (learner,) = [pid for pid, name in run.names().items() if name.startswith("learner")]
    os.kill(learner, signal.SIGSTOP)
    run.process.send_signal(numbers[0])
    time.sleep(2 * signals.TOGETHER_S)
    run.process.send_signal(numbers[1])
    assert run.wait(30) == 128 + numbers[1]
    assert not run.err
    until(lambda: gone(run), 10)
    assert run.result()["status"] == "interrupted"
    assert_goes_on(start, run.run)


# Not asked at all


@pytest.mark.parametrize("words", [COARSE, pytest.param(ASYNC, marks=pytest.mark.slow)], ids=["coarse", "async"])
def test_killed_alone_its_workers_end_by_themselves(start: Any, train: Any, words: list[str]) -> None:
    run = train(words)
    until(run.under_way)
    assert len(run.pids()) > 3
    run.process.kill()
    assert run.wait() == -signal.SIGKILL
    until(lambda: gone(run), 20)
    assert_goes_on(start, run.run)


@pytest.mark.slow
@pytest.mark.parametrize("words", [INLINE, COARSE, ASYNC], ids=["inline", "coarse", "async"])
def test_killed_with_everything_at_once(start: Any, train: Any, words: list[str]) -> None:
    run = train(words, "--checkpoint-every", 0.1)
    until(run.under_way)
    for pid in run.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.wait()
    until(lambda: gone(run), 20)
    assert_goes_on(start, run.run)


@pytest.mark.parametrize("words", [INLINE, pytest.param(COARSE, marks=pytest.mark.slow)], ids=["inline", "coarse"])
def test_the_terminal_is_closed(start: Any, train: Any, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    # The first process of a session takes a terminal that it opens for its own, and hears when it is closed.
    own = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR))"
    run = train(words, first=own, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    os.set_blocking(master, False)

    def read() -> bool:
        nonlocal shown
        with contextlib.suppress(BlockingIOError):
            shown += os.read(master, 65536)
        return run.under_way()

    until(read)
    os.close(master)
    assert run.process.wait(60) == 0
    assert gone(run)
    assert b"steps" in shown
    assert run.result()["status"] == "interrupted"
    assert_goes_on(start, run.run)


# The counting of signals


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


def test_the_first_is_recorded_and_the_second_raised() -> None:
    asked: list[int] = []
    before = [signal.getsignal(number) for number in signals.SIGNALS]
    with pytest.raises(Interrupted, match="SIGHUP") as raised, StopRequest(asked.append):  # noqa: PT012
        kill(signal.SIGTERM)
        kill(signal.SIGTERM)  # `timeout` sends two
        time.sleep(1.5 * signals.TOGETHER_S)
        assert asked == [signal.SIGTERM]
        kill(signal.SIGHUP)
        time.sleep(5.0)
    assert raised.value.status == 128 + signal.SIGHUP
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before


def test_nohup_is_heeded() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        asked: list[int] = []
        with StopRequest(asked.append):
            kill(signal.SIGHUP)
            kill(signal.SIGINT)
        assert asked == [signal.SIGINT]
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


STUCK = """
import hashlib, sys
from runnel.system import signals
signals.AT_ONCE_S = 0.2
with signals.StopRequest(lambda number: None, lambda reason: print("last word:", reason, flush=True)):
    print("stuck", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # no handler runs until it is over
"""


def test_a_process_that_is_stuck_ends_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUCK], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        time.sleep(3 * signals.TOGETHER_S)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert (process.returncode, out) == (128 + signal.SIGTERM, "last word: SIGTERM twice; stuck\n")
    finally:
        process.kill()
        process.communicate()
