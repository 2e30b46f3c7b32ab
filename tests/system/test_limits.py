"""A machine that runs out of something: the run says so plainly, and what was good is kept."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import ROOT
from toys import Corridor, Reinforce

import runnel
from runnel.algorithms.ppo import PPO
from runnel.errors import RunFailed, UserError
from runnel.execution.members.stacked_members import STACKED_ABOVE
from runnel.planning.machine import gpus
from runnel.recording import run_directory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import EventLog, read_events
from runnel.recording.files import AppendOnlyFile, one_line
from runnel.recording.metrics import MetricsLog, read_metrics

LARGE = PPO(unroll=8, minibatches=2, epochs=1, hidden=(256, 256))
"""Its checkpoints are larger than any other file of a short run."""

FILE_LIMIT = 300_000


def command(
    *words: Any, limit: tuple[int, int] | None = None, stdout: int | TextIO = subprocess.PIPE
) -> subprocess.Popen[str]:
    """The command line in a process of its own, under a limit of `resource`'s."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE}
    # In the new process itself: what this one has imported does not like to be forked.
    code = "" if limit is None else f"import resource; resource.setrlimit({limit[0]}, ({limit[1]}, {limit[1]}));"
    code += "import sys; from runnel.cli.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(argv, env=environ, text=True, **pipes)


def until(done: Callable[[], Any], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


# Checkpoints


def test_a_checkpoint_that_does_not_fit_costs_the_run_nothing_but_itself(tmp_path: Path) -> None:
    run = tmp_path / "run"
    runnel.train(LARGE, "CartPole-v1", envs=4, steps=64, run_dir=run, quiet=True, checkpoint_every_s=0.1)
    before = kept(run)
    process = command("resume", run, "--steps", 1_600, limit=(resource.RLIMIT_FSIZE, FILE_LIMIT))
    out, err = process.communicate(timeout=240)
    assert process.returncode == 1, err
    (line,) = [line for line in err.splitlines() if line.startswith("runnel resume: ")]
    assert "the last checkpoint could not be written: File too large; the newest whole one is " in line
    assert f"{before[-2]}; make room and continue with `runnel resume {run}`" in line
    assert "Traceback" not in err, err  # nor of orbax's threads
    assert "checkpoint failed: a checkpoint could not be written: File too large; " in out
    assert kept(run) == before
    result = json.loads((run / "result.json").read_text())
    assert (result["status"], result["env_steps"]) == ("failed", 1_600)  # it had gone on meanwhile
    told = [event for event in read_events(run) if event["event"] == "checkpoint_failed"]
    assert len(told) >= 2
    assert "training continues" in told[0]["action"]
    assert runnel.resume(run, steps=128, quiet=True).result["status"] == "finished"


class Carry(NamedTuple):
    """As much of a run's as a checkpoint needs to know."""

    states: Any
    replays: Any


def some(value: float) -> dict[str, Any]:
    return {"carry": Carry(np.full(100, value, np.float32), {}), "host": {}}


def loaded(run: Path) -> float:
    found, _ = Checkpoints(run).load(some(0.0), lambda text: None)
    return float(found["carry"].states[0])


@pytest.fixture
def broken_rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    rename, count = os.rename, [0]

    def set_up(at: int) -> None:
        def failing(source: str, target: str, **directories: int) -> None:
            count[0] += not str(target).endswith(".json")  # those of whole checkpoints
            if count[0] == at and not str(target).endswith(".json"):
                raise OSError(28, "No space left on device")
            rename(source, target, **directories)

        monkeypatch.setattr(os, "rename", failing)

    return set_up


@pytest.mark.parametrize("at", [1, 2])
def test_a_checkpoint_that_replaces_another_leaves_one_at_every_moment(
    tmp_path: Path, broken_rename: Callable[[int], None], at: int
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(3, some(1.0), {})
    broken_rename(at)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(3, some(2.0), {})
    assert loaded(tmp_path) == 1.0
    assert checkpoints.newest() is not None
    checkpoints.save(3, some(4.0), {})
    assert loaded(tmp_path) == 4.0
    assert kept(tmp_path) == ["000000000003", "latest"]


def test_half_a_checkpoint_is_removed_however_long_the_thread_stands_still(
    tmp_path: Path, broken_rename: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that still write make the first removal fail; then the time is over in which they can make it again."""
    remove, calls = run_directory.remove_tree, []

    def failing_at_first(root: Path, name: str) -> None:
        calls.append(name)
        if len(calls) > 1:
            remove(root, name)

    monkeypatch.setattr(run_directory, "remove_tree", failing_at_first)
    monkeypatch.setattr("runnel.recording.checkpoint.AWAY_S", 0.001)  # shorter than the pause between two attempts
    broken_rename(1)
    with pytest.raises(OSError, match="No space left"):
        Checkpoints(tmp_path).save(3, some(1.0), {})
    assert len(calls) == 2
    assert kept(tmp_path) == []


def test_pruning_leaves_the_newest_whole_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(5):
        checkpoints.save(number, some(number), {})
    for number in (3, 4):
        (checkpoints.directory / f"{number:012d}" / "manifest.json").write_text("{")
    later = [checkpoints.directory / f"{number:012d}" for number in (5, 6, 7)]
    for path in later:
        shutil.copytree(checkpoints.directory / f"{4:012d}", path)
    assert loaded(tmp_path) == 2.0
    checkpoints.save(3, some(8.0), {})  # as it goes on from there
    assert loaded(tmp_path) == 8.0
    assert kept(tmp_path) == ["000000000002", "000000000003", "latest"]


def test_what_a_killed_run_was_writing_is_cleared_away(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    half = tmp_path / "checkpoints" / f".writing-{ended.pid}"
    half.mkdir(parents=True)
    (half / "state").write_bytes(b"half")
    Checkpoints(tmp_path).save(1, some(1.0), {})
    assert kept(tmp_path) == ["000000000001", "latest"]


DISK_BYTES = 1 << 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(where)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        if shutil.disk_usage(where).total != DISK_BYTES:  # some sandboxes mount, and ignore the size
            pytest.skip("a mounted disk is not bounded here")
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(disk: Path) -> Path:
    """Takes all room there is; called again, also what was freed meanwhile."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(small_disk: Path, tmp_path: Path) -> None:
    run, printed = small_disk / "run", tmp_path / "printed"
    words = ["--envs", 4, "--steps", 1_000_000_000, "--checkpoint-every", 0.5, "--run-dir", run]
    with printed.open("w") as file:
        process = command("train", "ppo", "CartPole-v1", *words, "--set", "unroll=8", "hidden=(256, 256)", stdout=file)

    def both_fail() -> bool:
        # Again and again: checkpoints that fail, or that replace others, give back room for the next ones.
        fill(small_disk)
        assert process.poll() is None, "it ended"
        text = printed.read_text()
        return "checkpoint failed" in text and "metrics failed" in text

    try:
        until(lambda: len(kept(run)) >= 4 if (run / "checkpoints").exists() else False)
        until(both_fail)
        before = kept(run)
        (small_disk / "filler").unlink()
        until(lambda: kept(run)[-2] > before[-2])
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert "metrics.jsonl can be written again" in printed.read_text()
    steps = [record["env_steps"] for record in read_metrics(run)]
    assert steps == sorted(set(steps))
    assert runnel.resume(run, steps=steps[-1] + 320, quiet=True).result["status"] == "finished"


def test_a_full_disk_refuses_a_resumption_and_changes_nothing(small_disk: Path) -> None:
    run = small_disk / "run"
    runnel.train(LARGE, "CartPole-v1", envs=4, steps=32, run_dir=run, quiet=True)
    filler = fill(small_disk)
    with pytest.raises(UserError, match=r"cannot write .*config.json: No space left on device"):
        runnel.resume(run, steps=64, quiet=True)
    filler.unlink()
    assert runnel.resume(run, steps=64, quiet=True).result["env_steps"] == 64


def test_what_evaluation_finds_while_the_disk_is_full_costs_the_run_nothing(small_disk: Path) -> None:
    run_dir, filler = small_disk / "run", small_disk / "filler"

    def watch(progress: runnel.Progress) -> None:
        if progress.env_steps < 192:
            fill(small_disk)
        else:
            filler.unlink(missing_ok=True)

    run = runnel.train(
        Reinforce(), "evaluated:Walk", "inline", envs=4, steps=320, run_dir=run_dir, eval_every=32, eval_episodes=300,
        keep_best=99, on_update=watch, callback_every_s=0.0, quiet=True,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    found = [each["env_steps"] for each in read_evaluations(run_dir)]
    assert 128 not in found
    assert found[-4:] == [224, 256, 288, 320]
    assert [snapshot.env_steps for snapshot in runnel.policies(run_dir)][-4:] == [224, 256, 288, 320]


# Metrics


def test_metrics_that_cannot_be_written_do_not_end_a_run(tmp_path: Path) -> None:
    events = EventLog(tmp_path)
    with MetricsLog(tmp_path, events=events, clock=iter(range(100)).__next__) as log:
        (written,) = [fd for fd in Path("/proc/self/fd").iterdir() if str(fd.resolve()).endswith("/metrics.jsonl")]
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, int(written.name))
        os.close(full)
        for step in range(5):
            log.write({"env_steps": step})
        assert log.lost == 5
        log.rewind(3)
    told = [event["reason"] for event in read_events(tmp_path)]
    assert told[0] == "cannot write metrics.jsonl: No space left on device"
    assert told[-1] == "5 lines of metrics.jsonl are lost"
    assert sum("cannot" in reason for reason in told) == 1


GROWING = """
import resource, sys
from pathlib import Path
from runnel.recording.files import AppendOnlyFile
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
file = AppendOnlyFile(Path(sys.argv[1]))
for i in range(20):
    try:
        file.write(f"line {i:02d}\\n".encode())
    except OSError as error:
        print(error.errno)
"""


def test_a_file_holds_whole_pieces_only(tmp_path: Path) -> None:
    path = tmp_path / "file"
    out = subprocess.run(
        [sys.executable, "-c", GROWING, path], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert path.read_text() == "".join(f"line {i:02d}\n" for i in range(12))
    assert set(out.stdout.split()) == {"27"}  # EFBIG


def test_a_file_that_shrank_is_appended_to_where_it_ends(tmp_path: Path) -> None:
    file = AppendOnlyFile(tmp_path / "file")
    file.write(b"one\ntwo\n")
    os.truncate(tmp_path / "file", 4)
    file.write(b"three\n")
    file.close()
    assert (tmp_path / "file").read_bytes() == b"one\nthree\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device", "/a/b"), "No space left on device"),
        (ValueError("RESOURCE_EXHAUSTED: writing '/a/b': [errno 28: No space left on device]\n  at x"), None),
        (ValueError("first.\nsecond"), "first"),
        (KeyError(), "KeyError"),
        (RuntimeError("x" * 500), "x" * 197 + "..."),
    ],
)
def test_a_reason_fits_a_line(error: Exception, line: str | None) -> None:
    assert one_line(error) == (line or "No space left on device")


# Descriptors


def test_too_few_descriptors_are_reported_plainly(tmp_path: Path) -> None:
    words = ["--distribution", "coarse", "--actors", 8, "--envs", 8, "--steps", 1000, "--run-dir", tmp_path / "run"]
    process = command("train", "ppo", "CartPole-v1", *words, limit=(resource.RLIMIT_NOFILE, 48))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert "Traceback" not in err
    assert "descriptor" in err
    assert "ulimit -n" in err


@pytest.mark.parametrize("limit", [7, 12, 16])
def test_no_command_ends_in_a_traceback_for_want_of_descriptors(limit: int) -> None:
    process = command("plan", "ppo", "CartPole-v1", limit=(resource.RLIMIT_NOFILE, limit))
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert err == (
        f"runnel: found a limit of {limit} file descriptors, expected 32 or more; raise it with `ulimit -n 32`, or use "
        "fewer workers\nsee `runnel help command-line#doctor`\n"
    )


def test_too_few_descriptors_for_a_run_of_one_process_are_reported_before_it_starts(tmp_path: Path) -> None:
    words = ["--envs", 2, "--steps", 64, "--run-dir", tmp_path / "run", "--quiet"]
    process = command("train", "ppo", "CartPole-v1", *words, limit=(resource.RLIMIT_NOFILE, 40))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert "runnel train: found a limit of 40 file descriptors, expected " in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_limit_that_may_be_raised_is_raised() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 100));"
        "from runnel.system.limits import check_descriptors; check_descriptors(90);"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == "(90, 100)\n"


def test_a_working_directory_that_was_removed_is_reported_plainly(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    script = f"mkdir {gone} && cd {gone} && rmdir {gone} && {sys.executable} -m runnel"
    for words in ("train ppo CartPole-v1 --steps 10", "list"):
        ended = subprocess.run(
            ["sh", "-c", f"{script} {words}"], env=environ, capture_output=True, text=True, check=False, timeout=120
        )
        assert ended.returncode == (0 if words == "list" else 2), ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("settings", [{"hidden": (500_000, 500_000)}, {"unroll": 10**9}], ids=str)
def test_a_run_that_no_memory_can_hold_is_refused_before_it_starts(settings, tmp_path):
    with pytest.raises(UserError, match="this machine has"):
        runnel.train("ppo", "CartPole-v1", settings=settings, run_dir=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(("platform", "reason"), [("nothing", "Unable to initialize backend 'nothing'"), ("cuda", "")])
def test_a_platform_that_jax_does_not_have_is_refused_in_words(platform: str, reason: str) -> None:
    if platform == "cuda" and gpus("cuda"):
        pytest.skip("this machine has a GPU that JAX can use")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": platform}
    argv = [sys.executable, "-m", "runnel", "plan", "ppo", "CartPole-v1"]
    ended = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)
    *_, found, link = ended.stderr.splitlines()
    assert ended.returncode == 2
    assert found.startswith(
        f"runnel plan: found no device of the platforms '{platform}', which JAX_PLATFORMS asks for: "
    )
    assert reason in found
    assert link == "see `runnel help command-line#doctor`"


class Greedy(Reinforce):
    """Wants more memory for an update than there is anywhere."""

    def learn(self, state, trajectory, key):
        state, metrics = super().learn(state, trajectory, key)
        return state, {**metrics, "least": jnp.sort(jax.random.uniform(key, (1 << 46,)))[0]}


def test_a_device_without_memory_for_an_update_ends_the_run_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"a device has no memory left \(RESOURCE_EXHAUSTED: .*; use fewer") as refused:
        runnel.train(Greedy(), Corridor(), "fused", envs=2, steps=64, run_dir=tmp_path / "run", quiet=True)
    assert refused.value.page == "troubleshooting#out-of-memory"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", one_line(refused.value))


@pytest.mark.parametrize("seeds", [2, pytest.param(STACKED_ABOVE + 1, marks=pytest.mark.slow)])
def test_a_device_without_memory_for_members_ends_them_in_words(seeds: int, tmp_path: Path) -> None:
    options = {"seeds": seeds, "envs": 2, "steps": 64, "run_dir": tmp_path / "runs", "quiet": True}
    with contextlib.suppress(RunFailed):
        runnel.train_members(Greedy, Corridor(), "fused", **options)
    runs = json.loads((tmp_path / "runs" / "result.json").read_text())["runs"]
    assert len(runs) == seeds
    assert {run["status"] for run in runs} == {"failed"}
    for run in runs:
        assert "a device has no memory left (RESOURCE_EXHAUSTED: " in run["reason"]
