"""One record per worker process: what an old process has reported is not taken for its replacement's."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from supervision import DUMP, WAITING, Clock, FakeGroup

from runnel.config.run_config import RunConfig
from runnel.errors import StateLost, WorkerFailed
from runnel.execution.supervision.checkpoint_protocol import CheckpointProtocol
from runnel.execution.supervision.late_workers import MOST_STACKS
from runnel.execution.supervision.liveness import HeartbeatMonitor
from runnel.execution.supervision.progress import ProgressAggregator
from runnel.execution.supervision.supervisor import POLL_S, Supervisor
from runnel.recording.events import EventLog, read_events
from runnel.runtime.control_messages import Paused, Phase, ReadyToLoad, Saved, Status
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.workers.usage_meter import UsageMeter
from runnel.system import startup

KILLED = -9


def supervisor(group: Any, log: EventLog, clock: Callable[[], float] = time.monotonic) -> Supervisor:
    return Supervisor(group, ProgressAggregator(group.learners), UsageMeter({}, []), RunConfig(), log.record, clock)


@pytest.fixture
def group(tmp_path: Path) -> FakeGroup:
    return FakeGroup(tmp_path, ["actor-0", "actor-1", "learner"], DUMP)


@pytest.fixture
def supervised(group: FakeGroup, tmp_path: Path) -> Supervisor:
    return supervisor(group, EventLog(tmp_path))


def types(group: FakeGroup, name: str) -> list[str]:
    return [command["type"] for command in group.processes[name].commands]


def kill(supervised: Supervisor, group: FakeGroup, name: str) -> None:
    group.processes[name].status = KILLED
    supervised.listen(0.0)


def test_a_hang_is_shown_once_with_what_was_done_about_it(tmp_path: Path, group: FakeGroup) -> None:
    shown: list[str] = []
    clock = Clock()
    supervised = supervisor(group, EventLog(tmp_path, shown.append), clock)
    supervised.heartbeats = HeartbeatMonitor(2.0, clock)
    group.processes["actor-1"].report(Phase("working"))
    supervised.listen(0.0)
    clock.now = 2.4
    supervised.listen(0.0)
    assert len(shown) == 1
    assert shown[0].endswith("in step (/home/me/simulator.py, line 12); replaced")
    assert [event["event"] for event in read_events(tmp_path)] == ["hang", "restart"]
    assert group.reaped == ["actor-1"]


def test_a_replacement_has_a_new_record(supervised: Supervisor, group: FakeGroup) -> None:
    process, before = group.processes["actor-0"], supervised.records["actor-0"]
    process.report(Status("working", 1.0, {}, {}, ("parameters", 0.5)))
    supervised.listen(0.0)
    assert before.phase == "working"
    assert supervised.deadlocks.waits(before)
    kill(supervised, group, "actor-0")
    record = supervised.records["actor-0"]
    assert group.processes["actor-0"] is not process
    assert (record.state, record.phase, record.status, record.wait) == ("running", "starting", None, None)
    assert record.replacement is not None
    assert types(group, "actor-0") == ["load"]


@pytest.mark.parametrize("state", ["pausing", "paused", "saving", "saved"])
def test_a_replacement_is_asked_to_pause_like_the_worker_before_it(
    supervised: Supervisor, group: FakeGroup, state: Any
) -> None:
    record = supervised.records["actor-0"]
    record.state, record.phase = state, "working"
    kill(supervised, group, "actor-0")
    assert types(group, "actor-0") == ["load", "pause"]
    assert supervised.records["actor-0"].state == "pausing"


def test_a_lost_learner_and_a_worker_that_was_still_starting_take_all_back(
    supervised: Supervisor, group: FakeGroup
) -> None:
    supervised.records["learner"].phase = "working"
    for name in ("learner", "actor-0"):
        with pytest.raises(StateLost, match=f"{name} was killed by signal 9"):
            kill(supervised, group, name)
        assert name not in group.processes


def test_recovery_is_reported_when_the_worker_works(supervised: Supervisor, group: FakeGroup, tmp_path: Path) -> None:
    supervised.records["actor-0"].phase = "working"
    kill(supervised, group, "actor-0")
    group.processes["actor-0"].report(Status("compiling", 1.0, {}, {}))
    supervised.listen(0.0)
    assert [event["event"] for event in read_events(tmp_path)] == ["restart"]
    for _ in range(2):
        group.processes["actor-0"].report(Status("working", 1.0, {}, {}))
        supervised.listen(0.0)
    assert [event["event"] for event in read_events(tmp_path)] == ["restart", "recovered"]


def test_a_pause_before_the_agreed_iteration_does_not_count(supervised: Supervisor, group: FakeGroup) -> None:
    record = supervised.records["learner"]
    supervised.pause("learner", at_iteration=5)
    for iteration, state in ((4, "pausing"), (5, "paused")):
        group.processes["learner"].report(Paused(iteration))
        supervised.listen(0.0)
        assert (record.paused_at, record.state) == (iteration, state)


class Synchronous(CheckpointProtocol):
    """Of fake workers, which have no plan."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor, self.group = supervisor, supervisor.group
        self.learners = self.lockstep_learners = supervisor.group.learners
        self.catching_up = set()
        self._pause_at, self._notified = 0, set()

    def _stages(self) -> list[set[str]]:
        return [self.learners, set(self.group.specs) - self.learners]


def answer(group: FakeGroup, seen: dict[int, int]) -> None:
    """Each worker answers its new commands, as a real one would."""
    for name, process in group.processes.items():
        for command in process.commands[seen.get(id(process), 0) :]:
            match command["type"]:
                case "pause":
                    process.report(Paused(7 if name in group.learners else None))
                case "save":
                    counters = {counter: np.asarray(7) for counter in (names.ITERATION, names.ENV_STEPS)}
                    learns = name in group.learners
                    shared = {"shared": np.full(1, learns), **(counters if learns else {})}
                    process.report(Saved(), **{name: np.zeros(1)}, **shared)
                case "reset":
                    process.report(ReadyToLoad())
        seen[id(process)] = len(process.commands)


def test_all_parts_are_collected_though_a_worker_is_lost_meanwhile(
    supervised: Supervisor, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for record in supervised.records.values():
        record.phase = "working"
    seen: dict[int, int] = {}
    listened = [0]

    def poll(seconds: float) -> set[str]:
        answer(group, seen)
        listened[0] += 1
        first = group.processes["actor-1"]
        if listened[0] == 3 and "save" in types(group, "actor-1"):
            first.reports.clear()
            first.status = KILLED
        return FakeGroup.poll(group, seconds)

    monkeypatch.setattr(group, "poll", poll)
    arrays = Synchronous(supervised).save()
    assert set(arrays) == {"actor-0", "actor-1", "learner", "shared", names.ITERATION, names.ENV_STEPS}
    assert arrays["shared"] == [True]  # learners override the others
    assert group.reaped == ["actor-1"]
    assert all(record.paused for record in supervised.records.values())
    again = Synchronous(supervised).save()
    assert set(again) == set(arrays)
    assert types(group, "learner").count("save") == 2


class Compiling(FakeGroup):
    """The learner compiles and is heard from: at every look at the workers, so many seconds have passed."""

    def __init__(self, run_dir: Path, clock: Clock, seconds: float):
        super().__init__(run_dir, ["actor-0", "learner"])
        self.clock, self.seconds, self.beaten = clock, seconds, 0

    def poll(self, seconds: float) -> set[str]:
        self.clock.now += self.seconds
        self.processes["learner"].report(Status("compiling", self.clock.now, {}, {}))
        return super().poll(seconds)

    def beats(self, name: str) -> int:
        self.beaten += 1
        return self.beaten


def waited_for_a_compiler(tmp_path: Path, finished_at_s: float) -> float:
    """Waits 120 s for a pause that comes at a time; gives the time at which the wait ended."""
    clock = Clock()
    group: Any = Compiling(tmp_path, clock, 50.0)
    supervised = supervisor(group, EventLog(tmp_path), clock)
    supervised.wait_until(lambda: clock.now >= finished_at_s, 120.0, "pause")
    return clock.now


def test_a_wait_goes_on_while_a_worker_compiles(tmp_path: Path) -> None:
    assert waited_for_a_compiler(tmp_path, 1500.0) == 1500.0


def test_a_wait_for_a_compiler_ends(tmp_path: Path) -> None:
    words = r"no pause within 120 s, besides 1800 s in which workers compiled: waited for .*learner"
    with pytest.raises(WorkerFailed, match=words):
        waited_for_a_compiler(tmp_path, 1e6)


class OneProgram(FakeGroup):
    """Two learners of one program: the first compiles for some time and is heard from while it does, the second not."""

    def __init__(self, run_dir: Path, clock: Clock, compiled_s: float):
        super().__init__(run_dir, ["learner-0", "learner-1"], WAITING)
        self.clock, self.compiled_s = clock, compiled_s

    def unit(self, name: str) -> set[str]:
        return self.learners

    def poll(self, seconds: float) -> set[str]:
        self.clock.now += 10.0
        for name in self.processes:
            self.processes[name].report(Phase("working" if name == "learner-1" else "compiling"))
        return super().poll(seconds)

    def beats(self, name: str) -> int:
        return int(self.clock.now) if name == "learner-0" and self.clock.now < self.compiled_s else 0


@pytest.mark.parametrize(("compiled_s", "hung_at_s"), [(0.0, 130.0), (500.0, 980.0), (1e6, 1820.0)])
def test_a_learner_that_waits_for_one_that_compiles_does_not_hang(
    compiled_s: float, hung_at_s: float, tmp_path: Path
) -> None:
    clock = Clock()
    group: Any = OneProgram(tmp_path, clock, compiled_s)
    supervised = supervisor(group, EventLog(tmp_path), clock)
    supervised.heartbeats = HeartbeatMonitor(120.0, clock)
    with pytest.raises(StateLost, match="no heartbeat"):
        supervised.wait_until(lambda: clock.now > 4000, 1e9, "end")
    assert clock.now == pytest.approx(hung_at_s, abs=20.0)


class Beating(FakeGroup):
    """Counts how often heartbeats are read."""

    looks = 0

    def beats(self, name: str) -> int:
        self.looks += 1
        return self.looks


def test_all_workers_are_looked_at_a_few_times_a_second_however_many_reports_arrive(tmp_path: Path) -> None:
    names, clock = [f"actor-{i}" for i in range(40)], Clock()
    group: Any = Beating(tmp_path, [*names, "learner"])
    supervised = supervisor(group, EventLog(tmp_path), clock)
    for i in range(1000):  # in one second
        clock.now = i / 1000
        group.processes[names[i % 40]].report(Status("working", clock.now, {}, {}))
        supervised.listen(0.0)
        supervised.check_deadlock()
    assert group.looks == 41 * round(1 / POLL_S)
    assert all(supervised.records[name].status is not None for name in names)


def test_who_is_not_at_work_is_worked_out_where_it_is_shown_and_many_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = FakeGroup(tmp_path, [f"actor-{i}" for i in range(100)])
    supervised, phases = supervisor(group, EventLog(tmp_path)), []
    monkeypatch.setattr(startup, "phase", phases.append)
    group.processes["actor-0"].report(Status("working", 1.0, {}, {}))
    supervised.listen(0.0)
    (shown,) = phases
    assert shown() == f"starting: {', '.join(f'actor-{i}' for i in range(1, 9))}, 91 more"


def test_the_stacks_of_a_few_workers_are_read_however_many_are_late(tmp_path: Path) -> None:
    group: Any = FakeGroup(tmp_path, [f"actor-{i}" for i in range(100)])
    supervised, read = supervisor(group, EventLog(tmp_path)), []
    for name, process in group.processes.items():
        process.tracebacks = lambda name=name: read.append(name) or ""
    assert supervised._late().endswith("; 84 more")
    assert len(read) == MOST_STACKS
