"""The log of what broke: it says what happened in order, stays short, and never breaks anything itself."""

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from runnel.recording import events
from runnel.recording.events import EventLog, read_events
from runnel.system.oom import oom_kills


class Clock:
    def __init__(self, now: float = 1_800_000_000.5):
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_an_event_reaches_the_file_and_the_view(tmp_path):
    shown = []
    log = EventLog(tmp_path, shown.append, clock=Clock(1_800_000_000.25))
    log.record(
        "restart", worker="actor-1", reason="killed by signal 9", action="restarted from its journal", seconds=0.41
    )
    assert (tmp_path / events.FILE).read_text() == (
        '{"time": "2027-01-15T08:00:00.250Z", "event": "restart", "worker": "actor-1", '
        '"reason": "killed by signal 9", "action": "restarted from its journal", "seconds": 0.41}\n'
    )
    assert shown == ["actor-1: killed by signal 9; restarted from its journal (0.41 s)"]


def test_words_of_other_events(tmp_path):
    shown = []
    log = EventLog(tmp_path, shown.append)
    log.record("checkpoint_failed", reason="no space left on device\na traceback", action="trying again")
    log.record("interrupted")
    log.record("nan", reason="learn/loss", count=np.int64(3), value=float("nan"), where={"a": (1, 2)}, event_time=None)
    assert shown == [
        "checkpoint failed: no space left on device; trying again",
        "interrupted: interrupted",
        "nan: learn/loss",
    ]
    last = read_events(tmp_path)[-1]
    assert (last["count"], last["value"], last["where"]) == (3, "nan", {"a": [1, 2]})
    assert read_events(tmp_path)[0]["reason"] == "no space left on device\na traceback"


def test_a_hang_is_one_line_on_the_screen_and_two_in_the_file(tmp_path):
    shown = []
    log = EventLog(tmp_path, shown.append)
    log.record("hang", worker="actor-0", reason="sent no heartbeat", tracebacks="...", show=False)
    log.record("restart", worker="actor-0", reason="sent no heartbeat", action="replaced")
    assert shown == ["actor-0: sent no heartbeat; replaced"]
    assert [event["event"] for event in read_events(tmp_path)] == ["hang", "restart"]
    assert "show" not in read_events(tmp_path)[0]


def test_the_view_may_come_later_and_may_fail(tmp_path):
    log = EventLog(tmp_path)

    def broken(text: str) -> None:
        raise BrokenPipeError(text)

    log.record("cut", reason="one")
    log.note = broken
    log.record("cut", reason="two")
    assert [event["reason"] for event in read_events(tmp_path)] == ["one", "two"]


def test_many_of_a_kind_are_summed_up(tmp_path):
    shown, clock = [], Clock()
    log = EventLog(tmp_path, shown.append, clock=clock)
    for i in range(1000):
        clock.now += 0.01
        log.record("environment", worker="actor-0", reason=f"failure {i}")
    log.record("environment", worker="actor-1", reason="another's")
    assert len(shown) == events.AT_ONCE + 1
    clock.now += events.WINDOW_S
    log.record("environment", worker="actor-0", reason="a minute later")
    told = read_events(tmp_path)
    assert len(told) == events.AT_ONCE + 3
    assert told[-2]["count"] == 1000 - events.AT_ONCE
    assert "the last: failure 999" in told[-2]["reason"]
    assert told[-1]["reason"] == "a minute later"


def test_close_sums_up(tmp_path):
    log = EventLog(tmp_path)
    for _ in range(events.AT_ONCE + 2):
        log.record("cut", reason="again")
    log.close()
    log.close()
    assert [event.get("count") for event in read_events(tmp_path)] == [None] * events.AT_ONCE + [2]


def test_a_full_disk_is_survived_and_counted(tmp_path):
    (tmp_path / events.FILE).symlink_to("/dev/full")
    shown = []
    log = EventLog(tmp_path, shown.append)
    log.record("restart", worker="a", reason="one")
    log.record("restart", worker="b", reason="two")
    assert log.lost == 2
    assert len(shown) == 2
    (tmp_path / events.FILE).unlink()
    log.record("restart", worker="c", reason="three")
    assert [(event["worker"], event["lost"]) for event in read_events(tmp_path)] == [("c", 2)]
    assert log.lost == 0


@pytest.mark.parametrize("where", ["missing", "a file"])
def test_a_directory_that_is_not_there_is_survived(tmp_path, where):
    if where == "a file":
        (tmp_path / where).touch()
    log = EventLog(tmp_path / where)
    log.record("restart", reason="one")
    assert log.lost == 1


def test_goes_on_after_a_line_cut_short(tmp_path):
    (tmp_path / events.FILE).write_text('{"event": "whole"}\n{"event": "cut sh')
    log = EventLog(tmp_path)
    log.record("resumed", reason="now")
    log.record("cut", reason="then")
    assert [event["event"] for event in read_events(tmp_path)] == ["whole", "resumed", "cut"]
    assert (tmp_path / events.FILE).read_text().count("\n\n") == 0


def test_the_files_stay_short(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "MOST_BYTES", 2000)
    clock = Clock()
    log = EventLog(tmp_path, clock=clock)
    for i in range(500):
        clock.now += events.WINDOW_S
        log.record("restart", worker="actor-0", reason=f"number {i}")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 5000
    assert read_events(tmp_path)[-1]["reason"] == "number 499"
    numbers = [int(re.sub(r"\D", "", event["reason"])) for event in read_events(tmp_path)]
    assert numbers == sorted(numbers)


def test_a_long_text_is_shortened(tmp_path):
    EventLog(tmp_path).record("restart", reason="x" * 1_000_000)
    assert (tmp_path / events.FILE).stat().st_size < 2 * events.LONGEST


def test_threads_do_not_mix_lines(tmp_path):
    log = EventLog(tmp_path)
    threads = [
        threading.Thread(
            target=lambda name=f"w{i}": [log.record("cut", worker=name, reason="x" * 500) for _ in range(9)]
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len([json.loads(line) for line in (tmp_path / events.FILE).read_text().splitlines()]) == 72


def fake(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


EVENTS = "low 0\nhigh 1\nmax 17\noom 4\noom_kill {}\noom_group_kill 0\n"


def test_oom_kills_are_read_where_the_kernel_counts_them(tmp_path):
    assert oom_kills(fake(tmp_path, {})) is None
    assert oom_kills(fake(tmp_path, {"proc/vmstat": "nr_free_pages 12\noom_kill 9\n"})) == 9
    assert oom_kills(fake(tmp_path, {"sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 5\n"})) == 5
    assert oom_kills(fake(tmp_path, {"sys/fs/cgroup/memory.events": EVENTS.format(2)})) == 2
    own = {"proc/self/cgroup": "1:cpu:/x\n0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": EVENTS.format(3)}
    assert oom_kills(fake(tmp_path, own)) == 3


def test_kills_here_are_a_number_or_unknown():
    kills = oom_kills()
    assert kills is None or kills >= 0
