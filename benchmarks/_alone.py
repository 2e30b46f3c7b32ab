"""One fragment alone: a worker whose peers answer at once, always, and take whatever it makes.

It is the worker of the run, with the same settings, in a process like the one it has there; only its streams and
stores are stand-ins.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from runnel.environment import HostEnvironment
from runnel.execution.building import BuiltRun
from runnel.launch.framing import Received
from runnel.planning.channels import ParameterChannel, StreamSpec, derive_channels
from runnel.runtime.control_messages import Go, Status, Stop, parse_report
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.assembly import Assignment, StreamEnds
from runnel.runtime.workers.ports import InPort, OutPort, Stopped, WorkerContext
from runnel.runtime.workers.stream_headers import StepHeader, StreamHeader, UnrollHeader, ValueHeader
from runnel.runtime.workers.worker import run_worker
from runnel.transport import in_process
from runnel.transport.parameter_store import Parameters
from runnel.transport.stream import NO_HEADER, Header, Message, Schema, dtype_of

PUBLISHED_EVERY_S = 0.05
"""How often parameters are new."""

ENDLESS = 1 << 40


class _Line:
    """Says go at once and stop at the end."""

    closed = False

    def __init__(self, seconds: float):
        self.seconds, self.end = seconds, float("inf")
        self.gone = False
        self.first: Status | None = None
        self.status: Status | None = None

    def send(self, value: dict[str, Any], *, timeout_s: float) -> None:
        status = parse_report(value)
        if isinstance(status, Status) and status.phase == "working":
            # A second after the first turn everything that compiles has done so.
            if self.first is None and status.elapsed_s > 1.0:
                self.first, self.end = status, time.monotonic() + self.seconds
            self.status = status

    def send_arrays(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        pass

    def receive(self, timeout_s: float = 0) -> Any:
        if not self.gone:
            self.gone = True
            return Received(Go(ENDLESS, None).to_json())
        return Received(Stop().to_json()) if time.monotonic() > self.end else None


class _Reader:
    """A stream in which there is always another message."""

    def __init__(self, stream: StreamSpec):
        self._arrays, self._held, self._number = _filled(stream.schema), False, -1
        self._kind = stream.kind

    def receive(self, timeout_s: float) -> Message:
        self._held = True
        self._number += 1
        return Message(self._number, ENDLESS, self._header().pack(), 0, self._arrays)

    def _header(self) -> StreamHeader:
        if self._kind == "unroll":
            return UnrollHeader(self._number, version=1)
        return ValueHeader(1, self._number) if self._kind == "value" else StepHeader(self._number)

    def peek(self) -> bool:
        return not self._held

    def release(self, message: Message) -> None:
        self._held = False

    def begun(self) -> int | None:
        return None

    def pending(self) -> int:
        return 0

    def close(self) -> None:
        pass


class _Writer:
    """A stream in which there is always room."""

    def __init__(self, schema: Schema, slots: int):
        self.slots = [_filled(schema) for _ in range(slots)]
        self._next = 0

    def claim(self, iteration: int, timeout_s: float) -> int:
        return self._next

    def free(self) -> bool:
        return True

    def commit(self, header: Header = NO_HEADER) -> None:
        self._next = (self._next + 1) % len(self.slots)

    def last_header(self) -> Header | None:
        return None

    def close(self) -> None:
        pass


class _Store:
    """Parameters that are new from time to time, and never too old."""

    def __init__(self, schema: Schema):
        self._arrays = _filled(schema)

    def version(self) -> int:
        return ENDLESS + int(time.monotonic() / PUBLISHED_EVERY_S)

    def iteration(self) -> int:
        return self.version()

    def read(self) -> Parameters:
        return Parameters(self.version(), self.iteration(), self._arrays)


def _filled(schema: Schema) -> list[np.ndarray]:
    """Small numbers where there are reals, nothing elsewhere; aligned as streams align them."""
    rng, arrays = np.random.default_rng(0), []
    for field in schema:
        dtype, count = dtype_of(field), int(np.prod(field.shape))
        memory = np.zeros(count * dtype.itemsize + 64, np.uint8)
        first = -memory.ctypes.data % 64
        array = memory[first : first + count * dtype.itemsize].view(dtype).reshape(field.shape)
        if dtype.kind == "f":
            array[...] = 0.1 * rng.standard_normal(field.shape)
        arrays.append(array)
    return arrays


def alone(built: BuiltRun, fragment: str, seconds: float) -> dict[str, float]:
    """What the first worker of a fragment counts in a second: env_steps, updates, batches."""
    assert isinstance(built.environment, HostEnvironment)
    topology = derive_channels(built.plan, built.graph, host=True)
    spec = next(spec for spec in topology.workers if spec.fragment == fragment)
    line = _Line(seconds)
    context = WorkerContext(spec.name, in_process.InProcessBell(), line)  # type: ignore[arg-type]
    streams, stores = topology.of(spec.name)
    world = built.environment
    ends = _ends(context, streams, stores)
    assignment = Assignment(
        context,
        built.graph,
        built.plan,
        topology,
        spec,
        ends,
        0,
        None,
        lambda indices: world.open(indices, 0),
        BlockMemory.create(),
        BlockStart(),
    )
    try:
        run_worker(assignment)
    except Stopped:
        context.report()
    before, after = line.first, line.status
    assert before is not None
    assert after is not None
    elapsed = after.elapsed_s - before.elapsed_s
    return {name: (value - before.counts.get(name, 0.0)) / elapsed for name, value in after.counts.items()}


def _ends(context: WorkerContext, streams: Sequence[StreamSpec], stores: Sequence[ParameterChannel]) -> StreamEnds:
    ports: dict[StreamSpec, InPort | OutPort] = {}
    for stream in streams:
        if stream.source == context.name:
            writer = _Writer(stream.schema, stream.slots)
            ports[stream] = OutPort(context, writer, stream.name, stream.turn, stream.turns)  # type: ignore[arg-type]
        else:
            reader = _Reader(stream)
            ports[stream] = InPort(context, reader, stream.name, stream.source_turn, stream.source_turns)  # type: ignore[arg-type]
    readers = {b.group: (b, _Store(b.schema)) for b in stores if b.source != context.name}
    writers = {b.group: (b, in_process.InProcessStore(b.schema).writer()) for b in stores if b.source == context.name}
    return StreamEnds(ports, readers, writers)  # type: ignore[arg-type]
