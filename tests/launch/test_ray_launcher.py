"""Agents on the machines of a Ray cluster: several real Ray nodes, each with a network of its own."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from netns import Machine, Network, RayCluster, cluster  # noqa: F401
from paths import ROOT, SUPPORT

from runnel.errors import UserError
from runnel.launch import ray_host
from runnel.launch import ray_launcher as runnel_ray
from runnel.launch.host_launcher import versions
from runnel.launch.ray_shares import RayNode, RayRequest

ray = pytest.importorskip("ray")

STUB = str(SUPPORT / "stub_agent.py")


class Driver:
    """`RayHostLauncher` in a process on a machine of the network."""

    def __init__(self, machine: Machine, agent: tuple[str, ...] = (STUB,), env=None, **asked):
        self.machine = machine
        self.process = machine.popen(
            [sys.executable, SUPPORT / "hosts_driver.py", json.dumps({"agent": agent, **asked})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **(env or {})},
        )
        self.ready = self._hear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            assert self.process.wait(60.0) in (0, -signal.SIGKILL, 128 + signal.SIGKILL)
        finally:
            self.process.stdout.close()

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._hear()

    def start(self):
        told = self.ask("start")
        assert "joined" in told, told
        return told["joined"]

    def until(self, what, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not (told := self.ask("poll"))[what]:
            assert time.monotonic() < deadline, f"nothing was {what} within {seconds} s"
            time.sleep(0.1)
        return told[what]

    def _hear(self):
        return json.loads(self.process.stdout.readline())


def _agents(network: Network) -> dict[int, str]:
    """The processes of stubs, and their machines' names."""
    found = {}
    for machine in network.machines:
        for pid in network.processes_on(machine):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if len(words) > 1 and words[1].endswith(b"stub_agent.py"):
                    found[pid] = machine.name
    return found


def _gone(network: Network, seconds=20.0):
    deadline = time.monotonic() + seconds
    while agents := _agents(network):
        assert time.monotonic() < deadline, f"{agents} are still there"
        time.sleep(0.05)


def test_one_agent_on_each_machine(cluster):  # noqa: F811
    with Driver(cluster.head, address=cluster.address) as driver:
        assert driver.ready["interface"] == cluster.head.address
        assert not driver.ready["started"]
        assert not driver.ready["ray_here"]  # all of Ray is in another process
        joined = driver.start()
        assert [(each["name"], each["address"], each["cpus"]) for each in joined] == [
            (machine.name, machine.address, 2) for machine in cluster.network.machines
        ]
        assert joined[1]["public"] == f"key of {cluster.network.machines[1].name}"
        assert sorted(_agents(cluster.network).values()) == sorted(m.name for m in cluster.network.machines)
        assert driver.ask("poll") == {"lost": {}, "free": []}
    _gone(cluster.network)


def test_agents_end_with_a_driver_that_is_killed(cluster):  # noqa: F811
    with Driver(cluster.head) as driver:  # the cluster that this machine is part of
        assert driver.ready["address"] == cluster.address
        driver.start()
        for pid in cluster.network.processes_on(cluster.head):
            if b"ray_link" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGTERM)  # which is for the driver to act on
        assert driver.ask("poll") == {"lost": {}, "free": []}
        driver.machine.signal(driver.process, signal.SIGKILL)
        _gone(cluster.network)


def test_what_is_not_there_is_refused_at_once(cluster):  # noqa: F811
    with Driver(cluster.head, address=cluster.address, cpus_needed=50, gpus_needed=1) as driver:
        assert driver.ask("start")["error"].startswith(
            "asked for 50 CPUs and 1 GPU; the cluster has 6 CPUs free of 6 and no GPU on 3 machines: use fewer "
        )


def test_what_others_hold_is_not_taken(cluster):  # noqa: F811
    with (
        Driver(cluster.head, address=cluster.address, cpus_per_host=1) as one,
        Driver(cluster.head, address=cluster.address, cpus_needed=3) as another,
        Driver(cluster.head, address=cluster.address) as third,
    ):
        assert [each["cpus"] for each in one.start()] == [1, 1, 1]
        assert [each["cpus"] for each in another.start()] == [1, 1, 1]
        assert "has no CPU free of 6 and no GPU on 3 machines" in third.ask("start")["error"]


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        ((STUB, "--fail"), "ended before its greeting; status 1, its output: this agent was told to fail"),
        ((STUB, "--other"), "found Runnel 99.0, expected "),
    ],
)
def test_an_agent_that_does_not_start(cluster, agent, said):  # noqa: F811
    with Driver(cluster.head, agent, address=cluster.address) as driver:
        assert said in driver.ask("start")["error"]


def test_an_agent_that_ends_is_noticed(cluster):  # noqa: F811
    with Driver(cluster.head, address=cluster.address) as driver:
        driver.start()
        pid, name = next(iter(_agents(cluster.network).items()))
        os.kill(pid, signal.SIGKILL)
        lost = driver.until("lost")
        assert list(lost) == [name]
        assert "its agent ended; status -9" in lost[name]
        driver.ask("drop", name)
        assert driver.until("free") == [name]  # the machine itself is as good as new
        assert driver.ask("add", name)["joined"]["name"] == name


def test_a_killed_machine_is_noticed_and_a_new_one_joins(cluster):  # noqa: F811
    with Driver(cluster.head, address=cluster.address) as driver:
        driver.start()
        killed = cluster.network.machines[-1]
        killed.off()
        lost = driver.until("lost")
        assert list(lost) == [killed.name]
        assert "is gone" in lost[killed.name]
        driver.ask("drop", killed.name)
        (new,) = cluster.add()
        assert driver.until("free") == [new.name]
        joined = driver.ask("add", new.name)["joined"]
        assert (joined["name"], joined["address"], joined["cpus"]) == (new.name, new.address, 2)
        assert driver.ask("poll") == {"lost": {}, "free": []}
        assert "is not there any more" in driver.ask("add", killed.name)["error"]
    _gone(cluster.network)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("{head}:1", "no Ray head answers at {head}:1 (Connection refused); start one with"),
        ("somewhere", "found the address 'somewhere', expected HOST:PORT of a cluster's head"),
        ("ray://{head}:10001", "found ray://{head}:10001, expected HOST:PORT"),
    ],
)
def test_an_address_that_is_none(cluster, address, said):  # noqa: F811
    head = cluster.head.address
    with Driver(cluster.head, address=address.format(head=head)) as driver:
        assert driver.ready["error"].startswith(said.format(head=head))


def test_a_machine_that_is_no_part_of_the_cluster(cluster):  # noqa: F811
    if cluster.network.loopback:
        pytest.skip("all machines are one")
    lone = cluster.network.machine("lone")
    try:
        with Driver(lone, address=cluster.address) as driver:
            assert "this machine is no part of it; run `ray start --address=" in driver.ready["error"]
    finally:
        lone.off()


def test_a_cluster_is_started_here_where_there_is_none(cluster, tmp_path):  # noqa: F811
    if cluster.network.loopback:
        pytest.skip("Ray finds the cluster of the other tests")
    lone = cluster.network.machine("alone")
    try:
        with Driver(lone, env={"HOME": str(tmp_path)}) as driver:
            assert driver.ready.get("started"), driver.ready
            assert driver.ready["interface"] == "127.0.0.1"
            (joined,) = driver.start()
            assert (joined["name"], joined["address"]) == ("alone", "127.0.0.1")
            (folder,) = set(re.findall(r"/tmp/runnel-ray-[\w-]+", lone.run(["ps", "-e", "-ww", "-o", "args"]).stdout))
            assert Path(folder).exists()
        assert "raylet" not in lone.run(["ps", "-e", "-o", "comm"]).stdout
        assert not Path(folder).exists()
        assert not list(tmp_path.iterdir())
    finally:
        lone.off()


@pytest.mark.slow
def test_a_machine_off_the_network_for_twenty_seconds_is_not_lost(cluster):  # noqa: F811
    with Driver(cluster.head, address=cluster.address) as driver:
        driver.start()
        away = cluster.network.machines[1]
        away.cut()
        for _ in range(20):
            time.sleep(1.0)
            assert driver.ask("poll") == {"lost": {}, "free": []}
        away.mend()
        for _ in range(5):
            time.sleep(1.0)
            assert driver.ask("poll") == {"lost": {}, "free": []}
        (pid,) = [pid for pid, name in _agents(cluster.network).items() if name == away.name]
        os.kill(pid, signal.SIGKILL)
        assert list(driver.until("lost")) == [away.name]


def test_the_agent_itself_greets(cluster):  # noqa: F811
    with Driver(cluster.head, ("-m", "runnel.launch.agent"), address=cluster.address, cpus_needed=6) as driver:
        joined = driver.start()
        assert len({each["public"] for each in joined}) == 3
        assert [each["devices"] for each in joined] == [["cpu:0"]] * 3


def test_the_network_can_be_listened_to_and_cut():
    says = "from socket import *; import sys; socket(AF_INET, SOCK_DGRAM).sendto(b'hear me', (sys.argv[1], 9))"
    knocks = "from socket import *; import sys; create_connection((sys.argv[1], 9), 1.0)"

    def answer(address):
        return one.run([sys.executable, "-c", knocks, address]).stderr.splitlines()[-1]

    with Network() as network:
        one, other = network.machine(), network.machine()
        sniffer = network.sniff(other)
        one.run([sys.executable, "-c", says, other.address])
        assert answer(other.address).startswith("ConnectionRefusedError")  # its kernel has spoken
        assert answer(other.name).startswith("ConnectionRefusedError")
        other.cut()
        assert not answer(other.address).startswith("ConnectionRefusedError")
        other.mend()
        deadline = time.monotonic() + 20.0
        while not answer(other.address).startswith("ConnectionRefusedError"):
            assert time.monotonic() < deadline
        assert b"hear me" in sniffer.close()
    assert not network.processes()


# Without a cluster


def test_ray_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(runnel_ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs Ray, which is not installed; run: pip install 'runnel\[ray\]'"):
        runnel_ray.RayHostLauncher()


def test_versions_that_differ_are_reported_plainly(monkeypatch):
    from runnel.launch import ray_link

    text = (
        "Version mismatch: The cluster was started with:\n    Ray: 2.44.0\n    Python: 3.11.7\n"
        "This process on 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.12.4\n"
    )

    def refuse(*_, **__):
        raise RuntimeError(text)

    monkeypatch.setattr(ray_link.services, "find_node_ids", lambda: {"one"})
    monkeypatch.setattr(ray_link.ray, "init", refuse)
    with pytest.raises(
        UserError, match=r"found Ray 2.44.0 and Python 3.11.7 there, and Ray 2.60.0 and Python 3.12.4 h"
    ):
        ray_link.join("10.0.0.1:6379", "10.0.0.1:6379")


def test_a_machine_without_runnel_or_with_another_says_so(monkeypatch):
    told = {"name": "m1", "gpus": 0, "place": {"path": []}}
    assert ray_host.RayHostActor().start(["-c", ""], told, "99.0") == versions()
    monkeypatch.setitem(sys.modules, "runnel", None)
    refused = ray_host.RayHostActor().start(["-c", ""], told, "99.0")["refused"]
    assert refused.startswith(f"{sys.executable} cannot import runnel (")
    assert refused.endswith("install it on every machine")


def test_what_a_run_takes():
    big, small, busy = (
        RayNode(str(i), "", "", *has) for i, has in enumerate([(8, 4, 8, 4), (2, 0, 2, 0), (0, 1, 8, 1)])
    )
    assert RayRequest().share(big) == (8, 4)
    assert RayRequest(take_gpus=False).share(big) == (8, 0)
    assert RayRequest(gpus=1, take_gpus=False).share(big) == (8, 4)
    assert RayRequest(gpus=1, cpus_per_host=3).share(big) == (3, 4)
    assert RayRequest(gpus=1).share(busy) == (0, 0)  # an agent needs a CPU
    assert RayRequest(cpus=10, gpus=4).enough([big, small, busy])
    assert not RayRequest(cpus=11).enough([big, small, busy])
    assert RayRequest(cpus=11).ever_enough([big, small, busy])
    assert not RayRequest(cpus=19).ever_enough([big, small, busy])
    assert not RayRequest(cpus=0).enough([busy])
    told = RayRequest(cpus=19, cpus_per_host=2).too_little([big, small, busy])
    assert told.startswith(
        "asked for 19 CPUs, at most 2 on each machine; the cluster has 10 CPUs free of 18 and 5 GPUs "
    )
