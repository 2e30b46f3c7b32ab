"""Training over several real Ray nodes, each a machine with a network of its own, which breaks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kill_runs import assert_same, final_state
from netns import Machine, Network, RayCluster, cluster  # noqa: F401
from paths import ROOT, SUPPORT

from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics
from runnel.recording.policy_store import PolicyStore

pytest.importorskip("ray")

FOUND = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT), *sys.path]), "JAX_PLATFORMS": "cpu"}
SMALL = ["--set", "unroll=16", "hidden=(16,)"]
COARSE = ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "3", "--envs", "12", *SMALL]
ASYNC = ["impala", "CartPole-v1", "--distribution", "async", "--actors", "4", "--envs", "8", *SMALL]
COMMANDS = {
    "coarse": COARSE,
    "fine": ["ppo", "CartPole-v1", "--distribution", "fine", "--actors", "4", *SMALL],
    "environments": ["ppo", "CartPole-v1", "--distribution", "environments", "--actors", "4", *SMALL],
    "replicated": ["ppo", "CartPole-v1", "--distribution", "replicated", "--learners", "2", *SMALL],
    "central": ["a2c", "CartPole-v1", "--distribution", "central", "--actors", "2", *SMALL],
    "async": ASYNC,
    "decoupled": ["impala", "CartPole-v1", "--distribution", "decoupled", "--actors", "3", "--inference", "2",
                  "--envs", "12", *SMALL],
}  # fmt: skip


class Run:
    """`runnel train` on the head of a cluster, or on this machine."""

    def __init__(self, command: list[str], run_dir: Path, steps: int, cluster: RayCluster | None = None):  # noqa: F811
        flags = ["--steps", str(steps), "--run-dir", str(run_dir), "--seed", "3", "--checkpoint-every", "1", "--quiet"]
        ray = ["--launcher", "ray", "--address", cluster.address] if cluster is not None else []
        argv = [sys.executable, "-m", "runnel", "train", *command, *flags, *ray]
        self.run_dir = run_dir
        if cluster is None:
            self.process = subprocess.Popen(argv, env={**os.environ, **FOUND})
        else:
            self.process = cluster.head.popen(argv, env=FOUND)

    def under_way(self) -> bool:
        assert self.process.poll() is None, "it ended before it was broken"
        return (self.run_dir / "checkpoints" / "latest").exists() and len(read_metrics(self.run_dir)) > 2

    def until(self, done: Callable[[], Any], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    def result(self, seconds: float = 240.0) -> dict[str, Any]:
        assert self.process.wait(seconds) == 0
        return json.loads((self.run_dir / "result.json").read_text())

    def hosts(self) -> set[str]:
        return {worker["host"] for worker in self.result()["workers"]}

    def steps(self) -> int:
        records = read_metrics(self.run_dir)
        return records[-1]["env_steps"] if records else 0


@pytest.fixture
def own() -> Iterator[Callable[..., RayCluster]]:
    """Clusters of a test that breaks them."""
    with contextlib.ExitStack() as stack:
        yield lambda *args, **kwargs: RayCluster(stack.enter_context(Network()), *args, **kwargs)


slow = pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "coarse" else slow) for name in COMMANDS])
def test_every_distribution_trains_over_the_cluster(name: str, cluster: RayCluster, tmp_path: Path) -> None:  # noqa: F811
    run = Run(COMMANDS[name], tmp_path / "run", 6_000, cluster)
    result = run.result()
    assert result["status"] == "finished"
    assert len(run.hosts()) > 1
    assert result["restarts"] == 0
    for worker in result["workers"]:
        assert (tmp_path / "run" / "logs" / f"{worker['name']}.log").exists()
    if name not in ("central", "async", "decoupled"):
        alone = Run(COMMANDS[name], tmp_path / "alone", 6_000)
        assert alone.result()["env_steps"] == result["env_steps"]
        assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "alone"))


@slow
@pytest.mark.parametrize("name", ["coarse", "async"])
def test_a_machine_is_switched_off(name: str, own: Callable[..., RayCluster], tmp_path: Path) -> None:
    cluster = own(3)  # noqa: F811
    run = Run(COMMANDS[name], tmp_path / "run", 150_000, cluster)
    run.until(run.under_way)
    lost = cluster.network.machines[2]
    lost.off()
    result = run.result()
    assert result["status"] == "finished"
    assert any(reason.startswith(f"{lost.name} ") for reason in result["restart_reasons"])
    assert lost.name not in run.hosts()
    if name == "coarse":
        Run(COMMANDS[name], tmp_path / "alone", 150_000).result()
        assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "alone"))


@slow
def test_the_learners_machine_is_switched_off(own: Callable[..., RayCluster], tmp_path: Path) -> None:
    cluster = own(2)  # noqa: F811
    (big,) = cluster.add(1, cpus=4)  # the learner goes where there is most room
    run = Run(COARSE, tmp_path / "run", 150_000, cluster)
    run.until(run.under_way)
    assert "learner" in [Path(f"/proc/{pid}/comm").read_text().strip() for pid in cluster.network.processes_on(big)]
    big.off()
    result = run.result()
    assert result["status"] == "finished"
    assert big.name not in run.hosts()
    Run(COARSE, tmp_path / "alone", 150_000).result()
    assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "alone"))


@slow
@pytest.mark.parametrize("name", ["coarse", "async"])
def test_a_machine_is_off_the_network_for_20_seconds(name: str, own: Callable[..., RayCluster], tmp_path: Path) -> None:
    cluster = own(2, cpus=3)  # noqa: F811
    run = Run(COMMANDS[name], tmp_path / "run", 300_000, cluster)
    run.until(run.under_way)
    other = cluster.network.machines[1]
    other.cut()
    time.sleep(20.0)
    other.mend()
    result = run.result()
    assert result["status"] == "finished"
    assert result["restarts"] == 0
    assert run.hosts() == {machine.name for machine in cluster.network.machines}


@slow
def test_a_machine_that_joins_is_used(own: Callable[..., RayCluster], tmp_path: Path) -> None:
    cluster = own(2, cpus=3)  # noqa: F811
    run = Run(ASYNC, tmp_path / "run", 400_000, cluster)
    run.until(run.under_way)
    (new,) = cluster.add(1)
    result = run.result()
    assert result["status"] == "finished"
    assert new.name in run.hosts()
    assert any(event["event"] == "joined" for event in read_events(tmp_path / "run"))


def _listening(network: Network, machine: Machine) -> list[int]:
    """Ports on which something listens there, that is not Ray's."""
    pids = network.processes_on(machine)
    ours = [pid for pid in pids if b"runnel" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    found = set()
    for pid in ours:
        sockets = set()
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
            for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in sockets:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return sorted(found)


@slow
def test_an_intruder_reads_and_injects_nothing(own: Callable[..., RayCluster], tmp_path: Path) -> None:
    """Observations are known numbers, which are looked for in all that is heard on the network."""
    cluster = own(2)  # noqa: F811
    network, other = cluster.network, cluster.network.machines[1]
    command = ["ppo", "telltale:telltale", "--distribution", "coarse", "--actors", "3", "--envs", "12", *SMALL]
    sniffer = network.sniff(other)
    run = Run(command, tmp_path / "run", 60_000, cluster)
    run.until(run.under_way)
    ports = _listening(network, other)
    assert ports, "nothing of Runnel listens"
    intruder = network.machine()
    script = SUPPORT / "intruder.py"
    told = intruder.run([sys.executable, script, other.address, *map(str, ports)], env=FOUND, timeout=60.0)
    assert told.returncode == 0, told.stderr
    result = run.result()
    assert result["status"] == "finished"
    assert result["restarts"] == 0
    heard = sniffer.close()
    assert len(heard) > 100_000
    from telltale import MARK

    assert np.asarray(MARK, np.float32).tobytes() not in heard
    assert sum(result["network"]["rejected"]["reasons"].values()) > 0
    Run(command, tmp_path / "alone", 60_000).result()
    assert_same(final_state(tmp_path / "run"), final_state(tmp_path / "alone"))


EVALUATED = ["toys:Reinforce", "evaluated:Walk", "--distribution", "coarse", "--actors", "2", "--envs", "4",
             "--eval-every", "640", "--eval-episodes", "6", "--eval-wait"]  # fmt: skip
SLOW = ["--set", "eval.env.slow_s=0.01"]


@slow
def test_evaluation_goes_on_elsewhere_when_its_machine_is_switched_off(
    own: Callable[..., RayCluster], tmp_path: Path
) -> None:
    cluster = own(1, cpus=4)  # noqa: F811
    (other,) = cluster.add(1, cpus=8)
    run_dir = tmp_path / "run"
    run = Run([*EVALUATED, *SLOW, "--eval-workers", "4"], run_dir, 6_400, cluster)
    run.until(lambda: len(read_evaluations(run_dir)) > 3 and run.under_way())
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in cluster.network.processes_on(other)]
    assert sum(name.startswith("evaluator-") for name in names) >= 2
    other.off()
    result = run.result()
    assert result["status"] == "finished"
    assert any(reason.startswith(f"{other.name} ") for reason in result["restart_reasons"])
    assert other.name not in {place["host"] for place in result["evaluation_workers"]}
    Run([*EVALUATED, "--eval-workers", "0"], tmp_path / "alone", 6_400).result()
    found, wanted = (
        [(each["env_steps"], each["returns"]) for each in read_evaluations(tmp_path / name)]
        for name in ("run", "alone")
    )
    assert [at for at, _ in found] == list(range(0, 6_401, 640))
    assert found == wanted
    assert_same(final_state(run_dir), final_state(tmp_path / "alone"))


@slow
def test_policies_that_are_sent_to_other_machines_cannot_be_read_on_the_way(
    own: Callable[..., RayCluster], tmp_path: Path
) -> None:
    """Those that a run begins with, and those that are evaluated: their bytes are looked for in all that is heard."""
    cluster = own(2, cpus=4)  # noqa: F811
    source, other = tmp_path / "source", cluster.network.machines[1]
    Run([*EVALUATED, "--eval-workers", "0"], source, 640).result()
    sniffer = cluster.network.sniff(other)
    begin = ["--init-from", f"{source}@latest", "--keep-every", "1"]
    run = Run([*EVALUATED, *begin, "--eval-workers", "4"], tmp_path / "run", 1_280, cluster)
    result = run.result()
    assert other.name in {place["host"] for place in result["evaluation_workers"]}
    assert other.name in run.hosts()
    heard = sniffer.close()
    assert len(heard) > 10_000
    stored = [each.arrays()["params/w"] for each in PolicyStore(tmp_path / "run").query()]
    assert len(stored) > 2
    for array in (PolicyStore(source).find("latest")["agent"].arrays()["params/w"], *stored):
        assert array.nbytes >= 16
        assert array.tobytes() not in heard


def test_more_than_there_is_is_refused_at_once(cluster: RayCluster, tmp_path: Path) -> None:  # noqa: F811
    many = ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "48", "--envs", "48"]
    argv = [sys.executable, "-m", "runnel", "train", *many, "--launcher", "ray", "--address", cluster.address,
            "--run-dir", str(tmp_path / "run")]  # fmt: skip
    told = cluster.head.run(argv, env=FOUND, timeout=60.0)
    assert told.returncode == 2
    assert "asked for 49 CPUs; the cluster has 6 CPUs free of 6" in told.stderr
    assert "Traceback" not in told.stderr


def test_an_address_where_nothing_listens(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "runnel", "train", *COARSE, "--launcher", "ray", "--address", f"127.0.0.1:{port}",
            "--run-dir", str(tmp_path / "run")]  # fmt: skip
    told = subprocess.run(argv, env={**os.environ, **FOUND}, capture_output=True, text=True, timeout=120)
    assert told.returncode == 2
    assert "Traceback" not in told.stderr


@slow
def test_members_share_a_cluster(own: Callable[..., RayCluster], tmp_path: Path) -> None:
    cluster = own(2, cpus=4)  # noqa: F811
    argv = [
        "train",
        *COARSE,
        "--seeds",
        "3",
        "--steps",
        "6000",
        "--run-dir",
        str(tmp_path / "all"),
        "--launcher",
        "ray",
    ]
    process = cluster.head.popen(
        [sys.executable, "-m", "runnel", *argv, "--launcher", "ray", "--address", cluster.address],
        env=FOUND,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0
    assert b"2 members at a time" in out  # each of four workers, on four CPUs of each of two machines
    result = json.loads((tmp_path / "all" / "result.json").read_text())
    assert (result["status"], result["finished"]) == ("finished", 3)
    for k in range(3):
        own_result = json.loads((tmp_path / "all" / f"member-{k}" / "result.json").read_text())
        assert len({worker["host"] for worker in own_result["workers"]}) == 2
