"""A worker that compiles says so, wherever it does; one that only computes or waits does not."""

import sys
import threading
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from runnel.runtime.control_messages import Phase
from runnel.runtime.workers import compile_watch
from runnel.runtime.workers.ports import Stopped, WorkerContext
from runnel.system import tracebacks
from runnel.transport import in_process


def program(calls, offset):
    """Something that takes a while to trace, to lower and to compile."""

    def function(x):
        for i in range(calls):
            x = jnp.sin(x) * (i + offset)
        return x

    return function


def test_tracing_lowering_and_compiling_are_all_seen():
    """By the names that JAX has for them: where it renames one, this fails."""
    seen = set()

    def called(frame, event, _):
        for file, name in tracebacks.COMPILER.items():
            if event == "call" and frame.f_code.co_filename.endswith(file) and frame.f_code.co_name.startswith(name):
                assert tracebacks.compiles(tracebacks.of(frame))
                seen.add(file)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        jax.jit(program(2, time.time()))(jnp.float32(0)).block_until_ready()
    finally:
        sys.setprofile(before)
    assert seen == set(tracebacks.COMPILER)


@pytest.fixture
def watched(monkeypatch):
    monkeypatch.setattr(compile_watch, "LOOK_S", 0.01)
    said, over = [], threading.Event()
    line = SimpleNamespace(send=lambda value, timeout_s: said.append(value), closed=False)
    context = WorkerContext("learner", in_process.InProcessBell(), line)
    context.phase = "working"

    def current():
        if over.is_set():
            raise Stopped
        return context

    compile_watch.watch_compiler(current)
    yield SimpleNamespace(said=said, bell=context.bell)
    over.set()


def test_a_worker_says_that_it_compiles_and_sends_heartbeats(watched):
    before = watched.bell.beats()
    jax.jit(program(100, time.time()))(jnp.float32(0)).block_until_ready()
    deadline = time.monotonic() + 30
    while watched.said[-1:] != [Phase("working").to_json()] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Phase("compiling").to_json() in watched.said
    assert watched.said[-1] == Phase("working").to_json()
    assert watched.bell.beats() > before


def test_what_is_called_from_a_program_or_waits_is_no_compiler(watched):
    looked = []

    def slow(x):
        time.sleep(0.1)
        looked.append(
            tracebacks.compiles(tracebacks.of(sys._getframe())) or tracebacks.compiles(tracebacks.main_thread())
        )
        return x

    call = jax.jit(lambda x: jax.pure_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), x))
    call(jnp.float32(0)).block_until_ready()
    assert looked == [False]
