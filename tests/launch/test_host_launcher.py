"""Agents as processes of this machine, and what is said when one does not start."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from paths import SUPPORT

from runnel.errors import UserError
from runnel.launch import host_launcher
from runnel.launch.host_launcher import AgentInvitation, LocalHostLauncher
from runnel.planning.machine import Machine

STUB = str(SUPPORT / "stub_agent.py")
INVITATION = AgentInvitation("tcp://127.0.0.1:1", "a public key", {"path": []})


def _machines(*names):
    return [Machine(2, ("cpu:0",), name, f"127.0.0.{i + 2}") for i, name in enumerate(names)]


def _until(done, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def local():
    made = []

    def make(*names, agent=(STUB,), **kwargs):
        made.append(LocalHostLauncher(_machines(*names), agent=agent, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_agent_for_each_machine(local):
    here = local("a", "b")
    joined = here.start(INVITATION)
    assert [(each.name, each.address, each.cpus, each.devices) for each in joined] == [
        ("a", "127.0.0.2", 2, ("cpu:0",)),
        ("b", "127.0.0.3", 2, ("cpu:0",)),
    ]
    assert joined[0].public == "key of a"
    assert here.poll() == ([], [])
    pids = [here.pid(name) for name in "ab"]
    here.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_lost_machine_is_reported_once_and_can_come_back(local):
    here = local("a", "b")
    here.start(INVITATION)
    os.kill(here.pid("b"), signal.SIGKILL)
    lost = []
    _until(lambda: lost.extend(here.poll()[0]) or lost)
    assert lost == ["b"]
    assert "status -9" in here.why("b")
    assert here.poll() == ([], [])
    here.drop("b")
    assert here.poll() == ([], [])
    here.offer(*_machines("c"))
    assert here.poll() == ([], ["c"])
    assert here.add(INVITATION, "c").name == "c"
    assert here.poll() == ([], [])


def test_an_agent_runs_under_its_prefix(local, tmp_path):
    here = local("a", prefixes={"a": ("env", "PREFIXED=yes")})
    here.start(INVITATION)
    assert b"PREFIXED=yes" in Path(f"/proc/{here.pid('a')}/environ").read_bytes()


def test_an_agent_ends_with_the_process_that_started_it(tmp_path):
    script = tmp_path / "starter.py"
    script.write_text(f"""
import sys, time
from runnel.launch.host_launcher import AgentInvitation, LocalHostLauncher
from runnel.planning.machine import Machine
hosts = LocalHostLauncher([Machine(1, ("cpu:0",), "a")], agent=[{STUB!r}])
hosts.start(AgentInvitation("tcp://127.0.0.1:1", "key", {{}}))
print(hosts.pid("a"), flush=True)
time.sleep(60)
""")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=environ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()
    _until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--fail", r"agent of a ended before its greeting; status 1, its output: this agent was told to fail"),
        ("--other", r"a: found Runnel 99.0, expected .* as here; install the same on all machines"),
    ],
)
def test_an_agent_that_does_not_start_is_reported_with_its_own_words(local, flag, said):
    with pytest.raises(UserError, match=said):
        local("a", agent=(STUB, flag)).start(INVITATION)


def test_the_wait_for_a_silent_agent_ends(local):
    with pytest.raises(UserError, match=r"agent of a has not sent its greeting in time; its output: nothing"):
        local("a", agent=("-c", "import time; time.sleep(60)"), start_s=0.5, end_s=0.1).start(INVITATION)


def test_one_that_cannot_be_run(local):
    with pytest.raises(UserError, match=r"'no-such-command' cannot be run to start the agent of a: .*No such file"):
        local("a", prefixes={"a": ("no-such-command",)}).start(INVITATION)


def test_patches_of_python_go_together_and_nothing_else():
    here = host_launcher.versions()
    minor = ".".join(here["python"].split(".")[:2])
    assert host_launcher.differs({"python": f"{minor}.99"}) == ""
    assert host_launcher.differs({}) == ""
    assert (
        host_launcher.differs({"python": "3.9.1"})
        == f"found Python 3.9, expected {minor} as here; install the same on all machines"
    )
