"""The logs of workers do not grow without limit."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runnel.launch import logs

TALKS = """
import sys
for i in range(400_000):
    print(f"line {i:07d} of what an environment prints at every step of its life")
print("the last line", flush=True)
sys.stdin.read()
"""


def test_a_worker_that_talks_without_end_leaves_its_first_and_last_lines(tmp_path: Path) -> None:
    path = tmp_path / "actor-0.log"
    with path.open("ab") as file:
        worker = subprocess.Popen([sys.executable, "-c", TALKS], stdin=subprocess.PIPE, stdout=file, text=True)
        most = 0
        while worker.poll() is None:
            logs.shorten(path)
            most = max(most, path.stat().st_size)
            with path.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 100))
                if log.read().endswith(b"the last line\n"):
                    worker.communicate("")
            time.sleep(0.01)
    logs.shorten(path)
    assert most < 2 * logs.MOST_BYTES
    text = path.read_text()
    assert text.startswith("line 0000000 of what")
    assert text.endswith("the last line\n")
    assert "bytes were left out here" in text


def test_a_short_log_and_a_link_are_left_alone(tmp_path: Path) -> None:
    short, large, link = tmp_path / "short.log", tmp_path / "large", tmp_path / "link.log"
    short.write_text("a line\n")
    large.write_bytes(b"x" * (logs.MOST_BYTES + 1))
    link.symlink_to(large)
    for path in (short, link):
        logs.shorten(path)
    assert short.read_text() == "a line\n"
    assert large.stat().st_size == logs.MOST_BYTES + 1
    os.truncate(large, 0)


def test_they_are_looked_at_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_S", -1.0)
    log = tmp_path / "a.log"
    log.write_bytes(b"x\n" * logs.MOST_BYTES)
    logs.WorkerLogs().look([log, tmp_path / "missing.log"])
    assert log.stat().st_size < 3 << 20
