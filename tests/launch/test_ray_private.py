"""A Ray cluster that a run starts for itself: who can reach it, and what is left of it."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from paths import SUPPORT

from runnel.errors import RunFailed, UserError
from runnel.launch import ray_guard
from runnel.launch import ray_launcher as runnel_ray
from runnel.launch.host_launcher import AgentInvitation

STUB = str(SUPPORT / "stub_agent.py")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


def wait(done: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def listening(pids: list[int]) -> set[str]:
    """The addresses at which processes listen, as /proc writes them; loopback ends in 0100007F."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            local, state, inode = words[1].rpartition(":")[0], words[3], words[9]
            if inode in sockets and state in ("0A", "07"):
                found.add(local)
    return found


@needs_ray
def test_a_private_cluster_is_closed_to_others_and_leaves_nothing_when_its_link_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # which is for the user's own clusters
    hosts = runnel_ray.RayHostLauncher("local", agent=(STUB,))
    guard = hosts.pid
    try:
        assert hosts.started
        assert not hosts.open
        assert hosts.address.startswith("127.0.0.1:")
        public, _ = zmq.curve_keypair()
        hosts.start(AgentInvitation("tcp://127.0.0.1:1", public.decode(), {"path": sys.path}))
        pids = ray_guard.descendants(guard)
        assert len(pids) > 5
        assert all(address.endswith("0100007F") for address in listening(pids)), listening(pids)
        probe = [sys.executable, "-m", "runnel.launch.ray_private"]
        asked = subprocess.run(probe, input=hosts.address, capture_output=True, text=True, timeout=60)
        assert asked.stdout == "refused\n"
        (folder,) = Path("/tmp").glob(f"runnel-ray-{guard}-*")
        (link,) = [pid for pid in pids if "ray_link" in command(pid)]
        os.kill(link, signal.SIGKILL)
        wait(lambda: not any(map(alive, [guard, *pids])))
        with pytest.raises(RunFailed, match="the connection to Ray was lost"):
            hosts.poll()
        assert not folder.exists()
    finally:
        hosts.close()


# Without a cluster


@pytest.mark.parametrize("found", ["2.40.0", "2.53.0", "2.58.1", "1.99"])
def test_a_ray_that_does_not_enforce_tokens_is_refused(found: str) -> None:
    with pytest.raises(
        UserError, match=f"found Ray {found}, expected 2.59 or later, which keeps clients without a token"
    ):
        runnel_ray.check_version(found)


@pytest.mark.parametrize("found", ["2.59.0", "2.60.0", "2.100.0rc1", "3.0.0"])
def test_later_ones_are_not(found: str) -> None:
    runnel_ray.check_version(found)


@needs_ray
@pytest.mark.parametrize(("says", "told"), [("admitted", r"\(admitted\)"), ("", r"\(it ended without an answer\)")])
def test_a_cluster_that_admits_a_stranger_is_given_up(says: str, told: str) -> None:
    from runnel.launch import ray_private

    def stranger(word: str) -> subprocess.Popen[str]:
        code = f"input(); print({word!r})"
        return subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)

    with stranger(says) as process, pytest.raises(UserError, match=f"a client without one was not refused {told}"):
        ray_private.check_refused(process, "127.0.0.1:1")
    with stranger("refused") as process:
        ray_private.check_refused(process, "127.0.0.1:1")


LINK = """
import os, subprocess, sys
folder = os.environ.pop("RUNNEL_RAY_FOLDER")
os.mkdir(folder)
rays = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
orphan = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {rays!r}]).pid, flush=True)"
environ = {**os.environ, "RUNNEL_RAY_FOLDER": folder}
subprocess.run([sys.executable, "-c", orphan], env=environ)
agent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(agent.pid, os.getpid(), folder, flush=True)
input()
"""


@pytest.mark.parametrize("how", ["killed", "told"])
def test_a_guard_ends_whatever_a_link_has_left(how: str) -> None:
    argv = [sys.executable, "-m", "runnel.launch.ray_guard", sys.executable, "-c", LINK]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, text=True) as guard:
        assert guard.stdout is not None
        orphan = int(guard.stdout.readline())
        agent, link, folder = guard.stdout.readline().split()
        if how == "killed":
            os.kill(int(link), signal.SIGKILL)
        else:
            guard.send_signal(ray_guard.NOW)
        assert guard.wait(30.0) == 128 + signal.SIGKILL
    assert not any(map(alive, [orphan, int(agent), int(link)]))
    assert not Path(folder).exists()


def test_what_a_killed_guard_has_left_is_swept_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_guard, "FOLDERS", tmp_path)
    used, left, new = (tmp_path / f"runnel-ray-{number}-a" for number in range(3))
    for folder in (used, left, new):
        (folder / "ray").mkdir(parents=True)
    for folder in (used, left):
        os.utime(folder, (0.0, 0.0))
    held = ray_guard.hold(used)
    environ = {**os.environ, "RUNNEL_RAY_FOLDER": str(left)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, env=environ) as stray:
        wait(lambda: ray_guard.running_in(left) == [stray.pid])
        ray_guard.sweep()
        assert stray.wait(30.0) == -signal.SIGKILL
    os.close(held)
    assert used.exists()
    assert new.exists()
    assert not left.exists()
