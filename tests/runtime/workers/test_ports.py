"""What a worker does in a pause: it says so, throws away what keeps others from pausing, and goes on when told to."""

import time
from types import SimpleNamespace

from runnel.runtime.control_messages import Go, Paused, Status, parse_report
from runnel.runtime.workers import ports
from runnel.runtime.workers.ports import DRAIN_S, SLICE_S, InPort, OutPort, WorkerContext
from runnel.runtime.workers.stream_headers import UnrollHeader
from runnel.transport import in_process
from runnel.transport.stream import Field


class Line:
    """A launcher that says `go` as soon as the worker has time; meanwhile somebody `works`."""

    closed = False

    def __init__(self, works=lambda: None):
        self.works, self.said, self.timeouts = works, [], []

    def send(self, value, *, timeout_s):
        self.said.append(value)

    def receive(self, timeout_s=0.0):
        self.timeouts.append(timeout_s)
        self.works()
        return SimpleNamespace(value=Go(0, None).to_json()) if timeout_s == SLICE_S else None


def test_a_worker_that_pauses_says_so_and_goes_on_when_asked():
    line = Line()
    context = WorkerContext("learner", in_process.InProcessBell(), line)
    context.pause()
    assert Paused(None).to_json() in line.said
    assert line.timeouts == [SLICE_S]
    assert not context.pausing


def test_hundreds_of_batches_for_who_pauses_do_not_take_a_look_at_the_line_each():
    bell = in_process.InProcessBell()
    ring = in_process.create((Field((1,), "<f4"),), 2)
    left, line = [300], Line()
    context = WorkerContext("learner", bell, line)
    out, port = OutPort(context, ring.writer(bell, bell), "batch"), InPort(context, ring.reader(bell, bell), "batch")

    def works():
        while left[0] and out.free():
            out.claim(0)
            out.commit(UnrollHeader(0, 0))
            left[0] -= 1

    line.works = works
    works()
    context.worker.drain = port.drain  # type: ignore[method-assign]
    context.pause()
    assert left == [0]
    assert line.timeouts[:149] == [DRAIN_S] * 149
    assert line.timeouts[-1] == SLICE_S
    assert not port.drain()


def test_a_wait_that_was_reported_is_reported_to_be_over(monkeypatch):
    """Else a worker that computes for long seems to wait, and a run in which all seem to is ended."""
    line, comes = Line(), time.monotonic() + 1.5 * SLICE_S
    context = WorkerContext("actor", in_process.InProcessBell(), line)
    monkeypatch.setattr(ports, "REPORT_S", -1.0)  # every look at the line reports
    assert context.wait(lambda: time.monotonic() > comes or None, "parameters")
    reports = map(parse_report, line.said)
    first, *_, last = [report.waiting for report in reports if isinstance(report, Status)]
    assert first[0] == "parameters"
    assert last is None


def test_who_waits_sends_ten_heartbeats_a_second():
    bell, slices, comes = in_process.InProcessBell(), 4, time.monotonic() + 4.5 * SLICE_S
    context = WorkerContext("actor", bell, Line())
    assert context.wait(lambda: time.monotonic() > comes or None, "parameters")
    assert SLICE_S <= 0.1
    assert bell.beats() >= slices
