"""One run directory, one run at a time."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time

import pytest
from paths import SUPPORT

from runnel.errors import UserError
from runnel.recording import run_lock

FORKS = """
import os, pathlib, sys, time
from runnel.recording import run_lock as lock
with lock.hold(pathlib.Path(sys.argv[1]), print):
    child = os.fork()  # as an environment may
    if child == 0:
        time.sleep(60)
        os._exit(0)
    worker = __import__("subprocess").Popen(["sleep", "60"], close_fds=False)
    print(child, worker.pid, flush=True)
    time.sleep(60)
"""

TRAIN = """
import sys, runnel
sys.path.insert(0, sys.argv[1])
import toys
pathlib = __import__("pathlib")
go = pathlib.Path(sys.argv[3])
pathlib.Path(sys.argv[4]).touch()
while not go.exists():
    __import__("time").sleep(0.005)
from runnel.cli.main import main
sys.exit(main(["train", "reinforce", "CartPole-v1", "--steps", "2000000", "--envs", "2", "--run-dir", sys.argv[2]]))
"""


def free(run_dir):
    try:
        with run_lock.hold(run_dir, print):
            return True
    except UserError:
        return False


def test_a_second_one_is_refused_with_the_first_ones_details(tmp_path):
    with run_lock.hold(tmp_path, print):
        for _ in range(2):
            with pytest.raises(UserError, match=rf"in use by another run \(process {os.getpid()} on .*, since 20"):
                run_lock.hold(tmp_path, print).__enter__()
    assert free(tmp_path)


def test_removing_the_file_does_not_release_the_lock(tmp_path):
    with run_lock.hold(tmp_path, print):
        (tmp_path / run_lock.FILE).unlink()
        assert not free(tmp_path)
    assert free(tmp_path)


def test_whether_it_is_free_can_be_asked_without_a_change(tmp_path):
    run_lock.check_free(tmp_path)
    assert not list(tmp_path.iterdir())
    with (
        run_lock.hold(tmp_path, print),
        pytest.raises(UserError, match=rf"in use by another run \(process {os.getpid()} on"),
    ):
        run_lock.check_free(tmp_path)
    run_lock.check_free(tmp_path)


def test_it_ends_with_its_process_though_others_linger(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    lingering = [int(pid) for pid in holder.stdout.readline().split()]
    try:
        assert not free(tmp_path)
        holder.kill()
        holder.wait()
        assert free(tmp_path)
    finally:
        for pid in lingering:
            os.kill(pid, signal.SIGKILL)
        holder.stdout.close()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_noted(number, tmp_path, monkeypatch):
    def without(fd, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    notes = []
    with run_lock.hold(tmp_path, notes.append):
        pass
    assert len(notes) == 1
    assert "has no locks" in notes[0]


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 5000, b'{"pid": "x"}', b'{"pid": 1e999}', b"\xff\x00", b"null"])
def test_what_a_lock_says_may_be_anything(content, tmp_path):
    (tmp_path / run_lock.FILE).write_bytes(content)
    with open(tmp_path / run_lock.FILE) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="in use by another run;"):
            run_lock.hold(tmp_path, print).__enter__()


def test_a_link_is_not_locked(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / run_lock.FILE).symlink_to(tmp_path / "other")
    with pytest.raises(UserError, match="is a link"):
        run_lock.hold(tmp_path / "run", print).__enter__()
    assert (tmp_path / "other").read_text() == "mine"


def test_of_two_that_train_into_one_directory_one_does_and_a_resume_meanwhile_is_refused(tmp_path):
    run, go = tmp_path / "run", tmp_path / "go"
    here = str(SUPPORT)
    ready = [tmp_path / f"ready-{k}" for k in range(2)]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, here, str(run), str(go), str(path)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for path in ready
    ]  # fmt: skip
    try:
        while not all(path.exists() for path in ready):
            time.sleep(0.01)
        go.touch()
        while all(process.poll() is None for process in both):
            time.sleep(0.02)
        (loser,) = [process for process in both if process.poll() is not None]
        (winner,) = [process for process in both if process is not loser]
        _, told = loser.communicate()
        assert loser.returncode == 2
        assert f"in use by another run (process {winner.pid} on " in told
        while not (run / "config.json").exists():
            time.sleep(0.02)
        from runnel.cli.main import main

        assert main(["resume", str(run)]) == 2
        winner.send_signal(signal.SIGINT)
        _, told = winner.communicate(timeout=60)
        assert winner.returncode == 0, told
    finally:
        for process in both:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
