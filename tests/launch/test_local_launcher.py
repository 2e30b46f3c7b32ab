"""Workers are real processes here: how they start, what they are like, and that nothing is left of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from paths import SUPPORT

from runnel.errors import UserError
from runnel.launch import Control, LocalLauncher, LocalProcess, MalformedMessage, Received, WorkerCommand
from runnel.launch.control import FDS_PER_PACKET, INLINE_BYTES
from runnel.launch.local_launcher import refusal

ENTRIES = SUPPORT / "launch_entries.py"
LONG_S = 60.0


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalLauncher]:
    """Shared: servers take long to start."""
    before = descriptors()
    with LocalLauncher(tmp_path_factory.mktemp("servers") / "log") as launcher:
        launcher.warm(env_only=["numpy"], jax=[])
        launcher.prepare(f"{ENTRIES}:prepare", {"value": "made once"})
        yield launcher
    assert descriptors() == before


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., WorkerCommand]:
    def make(entry: str, name: str = "worker-0", env_only: bool = True, **fields: Any) -> WorkerCommand:
        return WorkerCommand(
            name, f"{ENTRIES}:{entry}", fields.pop("job", {}), env_only=env_only, log=tmp_path / f"{name}.log", **fields
        )

    return make


def descriptors() -> set[str]:
    return {fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


def hear(process: LocalProcess) -> dict[str, Any]:
    message = process.control.receive(LONG_S)
    assert message is not None, f"{process.exit_status()}: {process.tail()}"
    return message.value


def gone(pid: int) -> bool:
    try:
        # The state stands behind the name, which may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def await_that(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestControl:
    @pytest.fixture
    def ends(self) -> Iterator[tuple[Control, Control]]:
        before = descriptors()
        a, b = Control.pair()
        yield a, b
        a.close()
        b.close()
        assert descriptors() == before

    @pytest.mark.parametrize("length", [0, INLINE_BYTES - 8, INLINE_BYTES, 3_000_000])
    @pytest.mark.parametrize("count", [0, 1, FDS_PER_PACKET, 2 * FDS_PER_PACKET + 1])
    def test_sizes(self, ends, tmp_path, length, count):
        a, b = ends
        with (tmp_path / "file").open("w+") as file:
            a.send({"text": "x" * length}, [file.fileno()] * count)
        a.send({"next": 1})
        received = b.receive()
        assert received is not None
        assert received.value == {"text": "x" * length}
        assert len(set(received.fds)) == count
        for fd in received.fds:
            assert not os.get_inheritable(fd)
            os.close(fd)
        assert b.receive() == Received({"next": 1})
        assert b.receive() is None
        assert not b.closed

    def test_arrays(self, ends):
        a, b = ends
        arrays = {
            "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
            "transposed": np.arange(12, dtype=np.int64).reshape(3, 4).T,
            "scalar": np.array(7, np.uint8),
            "empty": np.zeros((0, 3)),
            "flags": np.array([True, False]),
            "complex": np.array([1j]),
            "swapped": np.array([1, 2], ">i4"),
            "text": np.array(["a", "bcd"]),
            "half": np.arange(5).astype(jax.numpy.bfloat16),
            "eighth": np.arange(5).astype(jax.numpy.float8_e5m2),
            "on a device": jax.numpy.arange(3),
        }
        a.send_arrays({"version": 1}, arrays)
        received = b.receive()
        assert received is not None
        assert received.value == {"version": 1}
        assert list(received.arrays) == list(arrays)
        for name, array in arrays.items():
            assert received.arrays[name].dtype == array.dtype
            np.testing.assert_array_equal(received.arrays[name], array)

    @pytest.mark.parametrize(
        "value", [np.array([object()]), np.zeros(2, [("a", "i4")]), jax.random.key(0)], ids=["object", "record", "key"]
    )
    def test_what_is_no_array_of_numbers_is_refused(self, ends, value):
        with pytest.raises(TypeError, match=r"array 'x' cannot be sent: .*; expected numbers"):
            ends[0].send_arrays({}, {"x": value})

    def test_what_is_no_object_is_refused(self, ends):
        with pytest.raises(TypeError, match="found a list, expected a JSON object"):
            ends[0].send([1])  # pyright: ignore[reportArgumentType]

    def test_an_end_that_closes(self, ends):
        a, b = ends
        a.send({"last": "words"})
        b.send({"never": "read"})
        a.close()
        assert not b.closed
        assert b.receive(LONG_S) == Received({"last": "words"})
        assert b.receive(LONG_S) is None
        assert b.closed
        for end in ends:
            with pytest.raises(BrokenPipeError):
                end.send({})

    def test_an_end_that_does_not_read(self, ends):
        a, b = ends
        sent = 0
        with pytest.raises(TimeoutError, match="does not read"):  # noqa: PT012
            while True:
                a.send({"text": "x" * 20_000}, timeout_s=0.05)
                sent += 1
        assert [b.receive() is not None for _ in range(sent + 1)] == [True] * sent + [False]
        a.send({"again": True})
        assert b.receive() == Received({"again": True})

    @pytest.mark.parametrize(
        ("packet", "body"),
        [
            (b"junk", None),
            (b"x" * 100, None),
            (("J", 0, 5), b""),
            (("Q", 0, 0), b""),
            (("J", 0, 4), b"[1]"),
            (("J", 0, 3), b"[1]"),
            (("J", 0, 3), b"{x}"),
            (("J", 0, 3), b"\xff\xff\xff"),
            (("J", 0, 20_000), b"[" * 20_000),
            (("J", 2, 2), b"{}"),
            (("J", 0, 2 * INLINE_BYTES), b"x" * 2 * INLINE_BYTES),
            (("M", 0, 2), b""),
            (("M", 1, 2), "{}   "),
            (("M", 1, 1 << 62), "{}"),
            (("M", 1, 2), "[]"),
            (("A", 1, 2), "{}"),
            (("A", 1, None), []),
            (("A", 1, None), {"name": "a", "dtype": "<f4", "shape": [1 << 60]}),
            (("A", 1, None), {"name": "a", "dtype": "<f4", "shape": [-1]}),
            (("A", 1, None), {"name": "a", "dtype": "<f4", "shape": [0, 1 << 80]}),
            (("A", 1, None), {"name": "a", "dtype": "<f4", "shape": [True]}),
            (("A", 1, None), {"name": "a", "dtype": "|O8", "shape": [0]}),
            (("A", 1, None), {"name": "a", "dtype": "O", "shape": [0]}),
            (("A", 1, None), {"name": "a", "dtype": "finfo", "shape": [0]}),
            (("A", 1, None), {"name": "a", "dtype": "<f99", "shape": [0]}),
            (("A", 1, None), {"name": "a", "dtype": "<U0", "shape": [3]}),
            (("A", 1, None), {"name": "a", "dtype": 4, "shape": [0]}),
            (("A", 1, None), {"name": 4, "dtype": "<f4", "shape": [0]}),
        ],
    )
    def test_malformed(self, packet, body):
        """It is dropped with what came with it, and harms nothing that follows."""
        before = descriptors()
        raw, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Control(end)
        fds = []
        if isinstance(packet, tuple):
            kind, count, length = packet
            in_memfd = body
            if length is None:
                in_memfd = json.dumps({"header": {}, "arrays": [body]})
                length = len(in_memfd)
            if isinstance(in_memfd, str):
                fds = [os.memfd_create("test")]
                os.write(fds[0], in_memfd.encode())
            inline = in_memfd if isinstance(in_memfd, bytes) else b""
            packet = struct.pack("<4scxxxIQ", b"rnl1", kind.encode(), count, length) + inline
        socket.send_fds(raw, [packet], fds)
        socket.send_fds(raw, [struct.pack("<4scxxxIQ", b"rnl1", b"J", 0, 2) + b"{}"], [])
        with pytest.raises(MalformedMessage, match="found"):
            control.receive()
        assert control.receive() == Received({})
        raw.close()
        control.close()
        for fd in fds:
            os.close(fd)
        assert descriptors() == before

    @pytest.mark.parametrize("kind", ["socket", "directory"])
    def test_a_descriptor_that_is_no_memfd(self, tmp_path, kind):
        raw, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control = Control(end)
        fd = os.dup(raw.fileno()) if kind == "socket" else os.open(tmp_path, os.O_RDONLY)
        length = min(os.fstat(fd).st_size, 10)
        socket.send_fds(raw, [struct.pack("<4scxxxIQ", b"rnl1", b"A", 1, length)], [fd])
        with pytest.raises(MalformedMessage, match="found"):
            control.receive()
        os.close(fd)
        raw.close()
        control.close()


class TestWorkers:
    def test_runs_its_entry_and_ends(self, launcher, make, monkeypatch, tmp_path):
        monkeypatch.setenv("CHANGED_LATE", "yes")
        monkeypatch.syspath_prepend(str(tmp_path / "more"))
        monkeypatch.chdir(tmp_path)
        process = launcher.start(make("report", job={"a": [1, 2.5, None]}, environ={"NPROC": "1"}))
        told = hear(process)
        assert process.wait(LONG_S) == 0
        assert process.exit_status() == 0
        assert process.tail() == "reporting"
        assert told["job"] == {"a": [1, 2.5, None]}
        assert told["pid"] == process.pid == told["group"]
        assert told["path"] == sys.path
        assert told["argv"] == sys.argv
        assert told["directory"] == str(tmp_path)
        assert told["environ"] == {**os.environ, "NPROC": "1"}
        assert not told["jax"]
        assert told["threads"] == 1
        assert told["fds"] == sorted({0, 1, 2, told["control"]})
        process.close()

    def test_has_a_name(self, launcher, make):
        process = launcher.start(make("linger", name="a-worker-with-a-long-name"))
        hear(process)
        assert Path(f"/proc/{process.pid}/comm").read_text() == "a-worker-with-a\n"
        process.close()
        await_that(lambda: gone(process.pid))

    def test_a_log_is_appended_to(self, launcher, make):
        for _ in range(2):
            process = launcher.start(make("report"))
            assert process.wait(LONG_S) == 0
        assert process.tail() == "reporting\nreporting"
        assert process.tail(lines=1) == "reporting"

    def test_many(self, launcher, make):
        processes = launcher.start_all([make("echo", name=f"worker-{i}") for i in range(70)])
        for i, process in enumerate(processes):
            process.control.send({"exit": i})
        assert [process.wait(LONG_S) for process in processes] == list(range(70))
        assert len({process.pid for process in processes}) == 70
        for process in processes:
            process.close()

    def test_draws_its_own_random_numbers(self, launcher, make):
        processes = launcher.start_all([make("numpy_random", name=f"worker-{i}") for i in range(2)])
        assert hear(processes[0]) != hear(processes[1])
        processes = launcher.start_all([make("report", name=f"worker-{i}") for i in range(2)])
        assert hear(processes[0])["random"] != hear(processes[1])["random"]

    def test_hundreds_of_descriptors(self, launcher, make, tmp_path):
        files = []
        for i in range(600):
            file = (tmp_path / str(i)).open("w+")
            file.write(f"text {i}")
            file.flush()
            files.append(file)
        process = launcher.start(make("read_fds", fds=tuple(file.fileno() for file in files)))
        assert hear(process)["texts"] == [f"text {i}" for i in range(600)]
        assert process.wait(LONG_S) == 0
        for file in files:
            file.close()

    def test_a_control_both_ways(self, launcher, make):
        process = launcher.start(make("echo", job={"large": "x" * 1_000_000}))
        read, write = os.pipe()
        for value in ({"text": "x" * 500_000}, {"small": True}):
            process.control.send(value, [write])
            message = process.control.receive(LONG_S)
            assert message is not None
            assert message.value == value
            os.write(message.fds[0], b"through")
            assert os.read(read, 100) == b"through"
            os.close(message.fds[0])
        process.control.send_arrays({"version": 3}, {"w": np.arange(6.0).reshape(2, 3)})
        message = process.control.receive(LONG_S)
        assert message is not None
        assert message.value == {"version": 3}
        np.testing.assert_array_equal(message.arrays["w"], np.arange(6.0).reshape(2, 3))
        os.close(read)
        os.close(write)
        process.control.close()
        assert process.wait(LONG_S) == 0


class TestEnds:
    def test_an_exception_is_reported(self, launcher, make):
        process = launcher.start(make("fail", job={"length": 200_000}))
        failed = hear(process)
        assert process.wait(LONG_S) == 1
        assert failed["error"] == "ValueError"
        assert failed["message"] == "no such luck" + "!" * 200_000
        assert "launch_entries.py" in failed["traceback"]
        assert not failed["user"]
        assert "ValueError: no such luck" in process.log.read_text()

    def test_a_users_mistake_is_distinguished(self, launcher, make):
        failed = hear(launcher.start(make("fail", job={"user": True})))
        assert failed["user"]
        assert failed["message"] == "found this, expected that; do so"

    def test_an_entry_that_does_not_exist(self, launcher, make):
        failed = hear(launcher.start(make("reprot")))
        assert failed["user"]
        assert "did you mean 'report'" in failed["message"]

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_a_signal(self, launcher, make, number):
        process = launcher.start(make("linger"))
        hear(process)
        assert process.exit_status() is None
        os.kill(process.pid, number)
        assert process.wait(LONG_S) == -number
        process.kill()  # too late, and harmless

    def test_a_crash_leaves_its_stack_in_the_log(self, launcher, make):
        process = launcher.start(make("crash"))
        assert process.wait(LONG_S) == -signal.SIGSEGV
        assert "launch_entries.py" in process.tail()

    def test_tracebacks_on_request(self, launcher, make):
        process = launcher.start(make("linger"))
        hear(process)
        os.kill(process.pid, signal.SIGUSR1)
        await_that(lambda: "in linger" in process.tail())
        assert process.exit_status() is None
        process.close()

    def test_an_interrupt_at_the_terminal_is_not_a_workers(self, launcher, make):
        process = launcher.start(make("echo"))
        os.kill(process.pid, signal.SIGINT)
        process.control.send({"still": "here"})
        assert hear(process) == {"still": "here"}
        process.close()

    def test_takes_with_it_what_it_started(self, launcher, make):
        process = launcher.start(make("linger", job={"starts": True}))
        started = hear(process)["started"]
        assert not gone(started)
        process.kill()
        await_that(lambda: gone(started))

    def test_a_killed_server_takes_its_workers_with_it_and_is_replaced(self, tmp_path, make):
        with LocalLauncher() as launcher:
            launcher.warm(env_only=["numpy"])
            process = launcher.start(make("linger"))
            server = hear(process)["server"]
            os.kill(server, signal.SIGKILL)
            again = launcher.start(make("report", name="worker-1"))
            assert hear(again)["parent"] != server
            assert process.wait(LONG_S) == -signal.SIGKILL
            await_that(lambda: gone(process.pid))

    def test_close_ends_everything(self, make):
        before = descriptors()
        launcher = LocalLauncher()
        jobs = [{}, {"stubborn": True}, {"starts": True}]
        processes = launcher.start_all([make("linger", name=f"worker-{i}", job=job) for i, job in enumerate(jobs)])
        told = [hear(process) for process in processes]
        launcher.close(timeout_s=0.5)
        launcher.close()
        assert [process.exit_status() for process in processes] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]
        for facts in told:
            assert gone(facts["pid"])
            assert gone(facts["server"])
        await_that(lambda: gone(told[2]["started"]))
        assert descriptors() == before
        with pytest.raises(RuntimeError, match="closed"):
            launcher.start(make("report"))

    def test_close_does_not_wait_for_imports(self, tmp_path, monkeypatch):
        (tmp_path / "endless_import.py").write_text("import time\ntime.sleep(1000)\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        with LocalLauncher() as launcher:
            launcher.warm(env_only=["endless_import"])


class TestJax:
    def test_computes_as_it_was_configured(self, launcher, make):
        flags = "--xla_force_host_platform_device_count=3"
        environ = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "true", "XLA_FLAGS": flags}
        processes = launcher.start_all(
            [
                make("jit", env_only=False, environ=environ),
                make("jit", name="worker-1", env_only=False, environ={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}),
                make("report", name="worker-2", env_only=False),
            ]
        )
        first, second, plain = [hear(process) for process in processes]
        assert (first["value"], first["platform"], first["devices"], first["dtype"]) == (42.0, "cpu", 3, "float64")
        assert (second["value"], second["platform"], second["devices"], second["dtype"]) == (42.0, "cpu", 1, "float32")
        assert plain["jax"]
        assert plain["threads"] == 1
        # What the server prepared is there, made once, in the server.
        assert first["prepared"] == second["prepared"] == plain["prepared"] == ["made once", plain["parent"]]
        assert [process.wait(LONG_S) for process in processes] == [0, 0, 0]

    def test_a_wrong_platform_is_the_workers_error(self, launcher, make):
        process = launcher.start(make("jit", env_only=False, environ={"JAX_PLATFORMS": "abacus"}))
        assert "abacus" in hear(process)["message"]

    def test_an_import_that_starts_a_backend(self, tmp_path, make, monkeypatch):
        (tmp_path / "eager_module.py").write_text("import jax\nONE = jax.numpy.ones(())\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        log = tmp_path / "server.log"
        with LocalLauncher(log) as launcher:
            launcher.warm(jax=["eager_module", "no_such_module"])
            launcher.prepare(f"{ENTRIES}:prepare_badly", {})
            jobs = [
                make("jit", env_only=False, environ={"JAX_PLATFORMS": "cpu"}, job={}),
                make("report", env_only=False),
            ]
            processes = launcher.start_all(jobs)
            assert hear(processes[0])["value"] == 42.0
            told = hear(processes[1])
            assert told["prepared"] is None
            assert not told["jax"]
            assert told["path"] == sys.path
            assert told["environ"] == dict(os.environ)
            assert told["fds"] == sorted({0, 1, 2, told["control"]})
            assert [process.wait(LONG_S) for process in processes] == [0, 0]
        said = log.read_text()
        assert said.count("an import has started JAX's backend: workers start as fresh interpreters") == 1
        assert "importing no_such_module failed: ModuleNotFoundError" in said
        assert "RuntimeError: not now" in said

    def test_a_server_that_cannot_live_is_reported_with_the_reason(self, make):
        before = descriptors()
        with LocalLauncher() as launcher:
            launcher.prepare(f"{ENTRIES}:prepare_to_die", {})
            with pytest.raises(UserError, match="'runnel-jax', the process that starts workers, ended with status -9"):
                launcher.start_all([make("report", env_only=False), make("report", env_only=False)])
        assert descriptors() == before


SCRIPT = """
import json, os, sys, time
from pathlib import Path
from runnel.launch import LocalLauncher, WorkerCommand

entries, here = sys.argv[1], Path(sys.argv[2])
print("once", flush=True)
"""


def run_script(tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + body)
    return subprocess.Popen(
        [sys.executable, str(script), str(ENTRIES), str(tmp_path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


class TestScripts:
    def test_needs_no_guard(self, tmp_path):
        body = """
with LocalLauncher() as launcher:
    process = launcher.start(WorkerCommand("w", f"{entries}:report", {}, env_only=True, log=here / "log"))
    print(process.control.receive(60).value["pid"] == process.pid)
    print(process.wait(60))
"""
        out, err = run_script(tmp_path, body).communicate(timeout=LONG_S)
        assert (out, err) == ("once\nTrue\n0\n", "")

    def test_a_script_that_starts_a_run_when_a_worker_imports_it(self, tmp_path):
        body = """
def entry(job, control, fds): ...

with LocalLauncher() as launcher:
    process = launcher.start(WorkerCommand("w", f"{__file__}:entry", {}, env_only=True, log=here / "log"))
    print(json.dumps(process.control.receive(60).value))
"""
        out, err = run_script(tmp_path, body).communicate(timeout=LONG_S)
        assert err == ""
        failed = json.loads(out.splitlines()[1])
        assert failed["user"]
        assert "if __name__ == '__main__'" in failed["message"]

    @pytest.mark.parametrize("where", ["main", "thread"])
    def test_a_killed_user_process_leaves_nothing(self, tmp_path, where):
        body = """
import threading
launcher = LocalLauncher()
def work():
    jobs = [{"starts": True}, {"stubborn": True}]
    started = launcher.start_all(
        WorkerCommand(f"w{i}", f"{entries}:linger", job, env_only=True, log=here / f"{i}") for i, job in enumerate(jobs)
    )
    print(json.dumps([process.control.receive(60).value for process in started]), flush=True)

if sys.argv[3] == "main":
    work()
else:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
# Who has inherited the sockets must not keep the workers alive.
holder = os.fork()
if holder:
    print(holder, flush=True)
time.sleep(1000)
"""
        script = run_script(tmp_path, body, where)
        assert script.stdout is not None
        assert script.stdout.readline() == "once\n"
        told = json.loads(script.stdout.readline())
        holder = int(script.stdout.readline())
        assert not any(gone(facts["server"]) for facts in told)
        script.kill()
        script.wait(LONG_S)
        pids = [facts[key] for facts in told for key in ("pid", "server", "started") if facts[key] is not None]
        assert len(pids) == 5
        await_that(lambda: all(map(gone, pids)))
        os.kill(holder, signal.SIGKILL)
        script.communicate()

    def test_a_user_process_killed_while_a_server_imports(self, tmp_path):
        (tmp_path / "endless_import.py").write_text(
            f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(1000)\n"
        )
        body = """
sys.path.insert(0, str(here))
launcher = LocalLauncher()
launcher.warm(env_only=["endless_import"])
time.sleep(1000)
"""
        script = run_script(tmp_path, body)
        pid_file = tmp_path / "pid"
        await_that(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
        script.kill()
        script.communicate()
        await_that(lambda: gone(int(pid_file.read_text())))

    def test_too_many_for_the_limit_of_descriptors(self, tmp_path):
        body = """
import resource
from runnel.errors import UserError

resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
started = []
with LocalLauncher() as launcher:
    try:
        while True:
            started.append(launcher.start(WorkerCommand("w", f"{entries}:linger", {}, env_only=True, log=here / "log")))
    except UserError as error:
        print(error)
    print(json.dumps([process.pid for process in started]))
"""
        out, err = run_script(tmp_path, body).communicate(timeout=LONG_S)
        assert err == ""
        _, error, pids = out.splitlines()
        assert "this process may open 40 files; use fewer workers, or raise the limit" in error
        assert len(json.loads(pids)) > 3
        await_that(lambda: all(map(gone, json.loads(pids))))


def test_too_many_for_the_limit_of_processes():
    text = str(refusal("actor-7", 7, errno.EAGAIN))
    assert "no room for the process of 'actor-7' after 7 workers" in text
    assert "use fewer workers" in text
