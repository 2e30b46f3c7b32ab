"""A worker's place in a run: its bell, its line to the supervisor, and its ends of streams. NumPy only.

All waits of a worker are here. Each ends when its condition holds, when the supervisor says stop, or when the other
end of the stream is gone. The time spent is counted by cause, which is how a run finds its bottleneck.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from runnel.config.json_messages import JsonMessage
from runnel.planning.rotation import EVERY, Rotation
from runnel.runtime.control_messages import (
    Command,
    EpisodesEnded,
    Event,
    Go,
    Load,
    Pause,
    Paused,
    Phase,
    PhaseName,
    Reset,
    Save,
    Saved,
    Status,
    Stop,
    TakeSnapshot,
    parse_command,
)
from runnel.runtime.workers.stream_headers import StreamHeader
from runnel.transport.bell import Bell
from runnel.transport.stream import Message, Reader, Writer

T = TypeVar("T")

REPORT_S = 0.25
"""How often a worker reports its status."""

SLICE_S = 0.1
"""How long a worker sleeps at most before it looks at its line to the supervisor."""

DRAIN_S = 1e-3
"""The same in a pause, while others still have something to get rid of: they may have hundreds of batches."""

SEND_S = 1.0
"""How long a worker tries to send a message before it sends a heartbeat and tries again."""


class Stopped(Exception):
    """The supervisor asks this worker to end."""


class ResetRequested(Exception):
    """The supervisor asks this worker to drop its work and wait for a state to begin from."""


class ControlLine(Protocol):
    """The worker's end of the line to the supervisor."""

    closed: bool

    def send(self, value: dict[str, Any], *, timeout_s: float) -> None: ...

    def send_arrays(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None: ...

    def receive(self, timeout_s: float = 0) -> Any: ...


class WorkerHooks:
    """The methods of a worker that its context calls, for commands of the supervisor and for reports.

    The defaults are those of a worker that neither trains nor keeps anything.
    """

    def save(self) -> dict[str, np.ndarray]:
        """This worker's part of a checkpoint. Called in a pause."""
        return {}

    def iteration(self) -> int | None:
        """The iteration that a worker which trains is at."""
        return None

    def drain(self) -> bool:
        """In a pause: takes in messages that others must get rid of to pause too. Returns whether there were any."""
        return False

    def episode_sums(self) -> dict[str, tuple[float, int]]:
        """Metrics of the episodes that have ended since the last call."""
        return {}

    def on_pause(self) -> None:
        """Called before a pause is reported."""

    def on_go(self, command: Go) -> None:
        """Called when the supervisor sends `Go`."""

    def on_snapshot(self) -> None:
        """Called in a pause when the supervisor asks for a snapshot."""


class WorkerContext:
    """A worker's line to its supervisor, and its own state as the supervisor sees it.

    The supervisor may ask for a pause, and save the worker's part of a checkpoint during it. A worker pauses where its
    state is that between two unrolls: where it says so by `between`, also while it waits there.
    """

    def __init__(self, name: str, bell: Bell, line: ControlLine):
        self.name, self.bell, self.line = name, bell, line
        self.waited: dict[str, float] = defaultdict(float)  # seconds, by cause
        self.counts: dict[str, float] = defaultdict(float)  # whatever the worker counts
        self.between = False
        self.pausing = False
        self.asked = False  # by the supervisor; a learner also pauses by itself, at the end of training
        self.pause_at = 0  # the iteration not to pause before
        self.worker = WorkerHooks()  # until `worker_loop.run` sets the worker
        self.snapshot_wanted = False
        self.phase: PhaseName = "starting"
        self._compiler = False  # whether the main thread compiles, as `compile_watch` sees it
        self._waits_for: str | None = None  # the cause, while it waits
        self._reported_wait = False
        self._waits_since = self._began_to_wait = 0.0
        self._reported = self.started = time.monotonic()

    def wait(self, ready: Callable[[], T | None], cause: str, left_s: Callable[[], float] = lambda: SLICE_S) -> T:
        """Waits until `ready` returns something, and returns it. `left_s`: how long it may sleep before it looks again
        without a ring of the bell."""
        found = ready()
        if found is not None:
            return found
        self._waits_for, self._waits_since = cause, time.monotonic()
        self._began_to_wait = self._waits_since
        try:
            while True:
                self.bell.beat()
                found = self.bell.wait(ready, max(0.0, min(SLICE_S, left_s())))
                if found is not None:
                    break
                self.poll()
                if self.pausing and self.between and not self.too_early():
                    self.pause()
        finally:
            self._count_wait()
            self._waits_for = None
        if self._reported_wait:  # or it would seem to wait still, while it computes
            self.report()
        return found

    def _count_wait(self) -> None:
        """Counts the part of a wait that has passed: else a worker whose wait does not end would seem busy."""
        if self._waits_for is not None:
            now = time.monotonic()
            self.waited[self._waits_for] += now - self._waits_since
            self._waits_since = now

    def poll(self) -> None:
        """Looks at the line, and reports from time to time."""
        self.bell.beat()
        while (message := self.line.receive()) is not None:
            self._take(parse_command(message.value))
        if self.line.closed:
            raise Stopped  # the supervisor is gone
        now = time.monotonic()
        if now - self._reported > REPORT_S:
            self._reported = now
            self.report()

    def _take(self, command: Command) -> None:
        match command:
            case Stop():
                raise Stopped
            case Reset():
                raise ResetRequested
            case Pause(at_iteration):
                self.pausing, self.asked, self.pause_at = True, True, at_iteration
            case Go():
                self.pausing, self.asked, self.pause_at = False, False, 0
                self.worker.on_go(command)
            case Save():
                self.worker.drain()  # the last to pause may have sent something
                self.line.send_arrays(Saved().to_json(), self.worker.save())
            case TakeSnapshot():
                self.snapshot_wanted = True
            case Load():
                raise AssertionError("a worker that was not reset was sent what to begin from")

    def pause(self) -> None:
        """Reports the pause and waits for `Go`; saves meanwhile on request."""
        self.pausing = True
        self.worker.on_pause()
        self.report()
        self.send(Paused(self.worker.iteration()))
        drained = 0.0
        while self.pausing and not self.too_early():
            self.bell.beat()
            if self.worker.drain():
                drained = time.monotonic()
            goes_on = time.monotonic() < drained + SLICE_S  # a source that had something may have more
            message = self.line.receive(DRAIN_S if goes_on else SLICE_S)
            if message is not None:
                self._take(parse_command(message.value))
                if self.snapshot_wanted:
                    self.worker.on_snapshot()
            elif self.line.closed:
                raise Stopped

    def leave_boundary(self) -> None:
        """From here on the state is no longer that between two unrolls: a pause waits for the next boundary."""
        self.between = False

    def too_early(self) -> bool:
        """Whether others are ahead: they cannot finish an iteration without this worker, or it is to catch up."""
        iteration = self.worker.iteration()
        return iteration is not None and iteration < self.pause_at

    def send(self, message: JsonMessage) -> None:
        """Sends a message to the supervisor. While the driver is stopped (Ctrl-Z), so is the worker."""
        while True:
            try:
                return self.line.send(message.to_json(), timeout_s=SEND_S)
            except TimeoutError:
                self.bell.beat()
            except BrokenPipeError:
                raise Stopped from None  # the supervisor is gone

    def report_event(self, event: str, **details: Any) -> None:
        """Reports something that broke and was mended here."""
        self.send(Event(event, details))

    def report(self) -> None:
        self._count_wait()
        sums = self.worker.episode_sums()
        if sums:
            self.send(EpisodesEnded(sums))
        elapsed = time.monotonic() - self.started
        waits = None if self._waits_for is None else (self._waits_for, time.monotonic() - self._began_to_wait)
        self._reported_wait = waits is not None
        self.send(Status(self._phase_now(), elapsed, dict(self.waited), dict(self.counts), waits))

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around a compilation during work; its time counts as work all the same."""
        phase, self.phase = self.phase, "compiling"
        if phase != "compiling":
            self.send(Phase("compiling"))
        try:
            yield
        finally:
            self.phase = phase
            if phase != "compiling":
                self.bell.beat()
                self.send(Phase(phase))

    def note_compiler(self, runs: bool) -> None:
        """Notes whether this worker compiles; called from another thread, several times a second."""
        if runs or self._compiler:
            self.bell.beat()
        if runs != self._compiler:
            self._compiler = runs
            self.send(Phase(self._phase_now()))  # also where the compiler lets no other thread run for a while

    def _phase_now(self) -> PhaseName:
        return "compiling" if self._compiler else self.phase

    def enter(self, phase: PhaseName) -> None:
        """A phase of the worker's life: starting, compiling, working."""
        if phase != self.phase:
            self.phase = phase
            self.restart()

    def restart(self) -> None:
        """Restarts the sums, so that earlier phases, such as compiling, are not in them."""
        self.started = time.monotonic()
        self.waited.clear()
        self.report()


class OutPort:
    """The writing end of a stream. Several replicas that read it take whole iterations in rotation."""

    def __init__(self, context: WorkerContext, writer: Writer, name: str, rotation: Rotation = EVERY):
        self.context, self.writer, self.name = context, writer, name
        self.rotation = rotation
        self.slots: Sequence[list[np.ndarray]] = writer.slots
        self.last_header = writer.last_header()
        """The header of the last message of the worker that this one replaces; None where there is none."""

    def takes(self, iteration: int) -> bool:
        return self.rotation.takes(iteration)

    def free(self) -> bool:
        return self.writer.free()

    def claim(self, iteration: int = 0) -> int:
        """A slot to fill; waits while the reader has not caught up."""
        if not self.writer.free():
            self.context.wait(lambda: self.writer.free() or None, f"room in {self.name}")
        claimed = self.writer.claim(iteration, 0.0)
        assert claimed is not None
        return claimed

    def commit(self, header: StreamHeader) -> None:
        self.writer.commit(header.pack())

    def send(self, header: StreamHeader, arrays: Sequence[Any], iteration: int = 0) -> None:
        """A whole message at once."""
        slot = self.slots[self.claim(iteration)]
        for to, value in zip(slot, arrays, strict=True):
            to[...] = np.asarray(value)
        self.commit(header)


class InPort:
    """The reading end of a stream."""

    def __init__(self, context: WorkerContext, reader: Reader, name: str, rotation: Rotation = EVERY):
        self.context, self.reader, self.name = context, reader, name
        self.rotation = rotation

    def takes(self, iteration: int) -> bool:
        return self.rotation.takes(iteration)

    def peek(self) -> bool:
        return self.reader.peek()

    def receive(self) -> Message:
        """The next message; waits for it."""
        if not self.reader.peek():
            self.context.wait(lambda: self.reader.peek() or None, self.name)
        message = self.reader.receive(0.0)
        assert message is not None
        return message

    def release(self, message: Message) -> None:
        self.reader.release(message)

    def drain(self) -> bool:
        """Discards what has arrived; returns whether anything had."""
        found = False
        while self.reader.pending():
            message = self.reader.receive(0.0)
            if message is not None:
                self.reader.release(message)
                found = True
        return found
