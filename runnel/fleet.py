"""A plan of several workers at work: their processes, what connects them, and what they tell.

To a session it is a program like any other: `run` comes back from time to time while the workers go on.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runnel.bottleneck import Report
from runnel.building import Built
from runnel.environment import is_traceable
from runnel.errors import UserError, WorkerFailed
from runnel.launch import LocalLauncher, Process
from runnel.launch import Worker as Start
from runnel.plan import Machine, learns
from runnel.runtime import parts, totals
from runnel.runtime.blocks import group_types
from runnel.runtime.carry import Carry
from runnel.runtime.messages import fields_json
from runnel.runtime.program import carry_types
from runnel.runtime.tally import Tally, Watched
from runnel.runtime.topology import Link, Post, staleness_in_iterations, wire
from runnel.runtime.totals import Progress
from runnel.transport import bell, shared, store
from runnel.transport.memory import arrays_bytes
from runnel.types import PyTree

STOP_S = 5.0
"""How long workers may take to end when asked."""

LONG_SPIN_S = 1e-3
"""How long a worker that has a core of its own looks for what it waits for before it sleeps: being woken takes long."""

START_S = 300.0
"""How long learners may take to start."""

PAUSE_S = 120.0
"""How long a pause may take to reach a worker: an iteration, and what it compiles."""


class Fleet:
    """All workers of a plan."""

    def __init__(self, built: Built, config: dict[str, Any], run_dir: Path, launcher: LocalLauncher, machine: Machine):
        self.built, self.config, self.launcher, self.cpus = built, config, launcher, machine.cpus
        self.graph, self.plan = built.graph, built.plan
        self.host = not is_traceable(built.environment)
        self.free = staleness_in_iterations(self.plan, self.graph) > 0
        self.topology = wire(self.plan, self.graph, self.host)
        self.carry: Carry | None = None  # of the newest checkpoint
        self.progress: dict[str, dict[str, Any]] = {}  # by worker: what it told last
        self.status: dict[str, dict[str, Any]] = {}
        self.sums = totals.Summed(0, {}, {})
        self.paused: set[str] = set()
        self._saved: dict[str, dict[str, np.ndarray]] = {}
        self._loaded = False
        self._told = _Told()
        self.run_dir = run_dir
        shared.check_room(self._bytes())
        self.bells = {post.name: shared.Bell.create() for post in self.topology.posts}
        self.rings = {link: shared.create(link.schema, link.slots) for link in self.topology.links}
        self.stores = {board: store.Store.create(board.schema) for board in self.topology.boards}
        self.tally = self._tally()
        self.processes: dict[str, Process] = {}
        try:
            self._start(machine)
        except BaseException:
            self.close()
            raise

    # Starting

    def _bytes(self) -> int:
        streams = sum(shared.size(link.schema, link.slots) for link in self.topology.links)
        return streams + sum(store.size(board.schema) for board in self.topology.boards)

    def _start(self, machine: Machine) -> None:
        config = {name: self.config[name] for name in ("algorithm", "environment", "distribution", "envs")}
        x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        common = {"config": config, "machine": asdict(machine), "seed": self.config["seed"], "x64": x64}
        (self.run_dir / "logs").mkdir(exist_ok=True)
        peers = self._peers()
        starts = []
        for post in self.topology.posts:
            job, fds = self._job(post)
            job |= common | {"peers": peers.get(post.name)}
            entry = "runnel.workers:play" if post.light else "runnel.workers:work"
            starts.append(
                Start(
                    post.name, entry, job, fds, post.light, self._environ(post),
                    log=self.run_dir / "logs" / f"{post.name}.log",
                )
            )  # fmt: skip
        if not all(post.light for post in self.topology.posts):
            self.launcher.prepare("runnel.workers:prepare", common)
        self.processes = {process.name: process for process in self.launcher.start_all(starts)}

    def _job(self, post: Post) -> tuple[dict[str, Any], tuple[int, ...]]:
        links, boards = self.topology.of(post.name)
        others = {name for link in links for name in (link.source, link.target)}
        others |= {name for board in boards for name in (board.source, *board.targets)}
        peers = sorted(others - {post.name})
        fds = [*self.bells[post.name].fds]
        for name in peers:
            fds += self.bells[name].fds
        fds += [self.rings[link].fileno() for link in links]
        fds += [self.stores[board].fileno() for board in boards]
        job: dict[str, Any] = {
            "name": post.name,
            "spin_s": LONG_SPIN_S if len(self.topology.posts) <= self.cpus else bell.SPIN_S,
            "bells": peers,
            "links": [_link_json(link) for link in links],
            "boards": [{"group": board.group, "schema": fields_json(board.schema)} for board in boards],
        }
        if post.light:
            job |= self._light(post)
        return job, tuple(fds)

    def _light(self, post: Post) -> dict[str, Any]:
        """What a worker must be told that cannot trace the graph itself."""
        fragment = next(f for f in self.plan.fragments if f.name == post.fragment)
        rollouts = self.graph.of_kind("rollout")
        return {
            "environment": self.config["environment"],
            "unroll": self.graph.unroll,
            "free": self.free,
            "rolled": [node.group for node in rollouts if node.name in fragment.nodes],
            "discounts": {node.group: node.rollout.discount for node in rollouts},
            "blocks": [[b.number, b.start, b.stop] for b in self.topology.blocks if b.worker == post.name],
            "groups": {
                group: {
                    "action": fields_json([types.action]),
                    "extras": fields_json(types.extras),
                    "memory": fields_json(types.memory),
                    "real": types.real,
                }
                for group, types in group_types(self.graph).items()
            },
        }

    def _environ(self, post: Post) -> dict[str, str]:
        platform = post.devices[0].partition(":")[0]
        environ = {"JAX_ENABLE_X64": "1" if jax.config.jax_enable_x64 else "0"}  # type: ignore[attr-defined]
        if platform == "cpu":
            fragment = next(f for f in self.plan.fragments if f.name == post.fragment)
            others = self.plan.workers - fragment.replicas
            own = max(1, (self.cpus - others) // fragment.replicas) if learns(fragment, self.graph) else 1
            return environ | {"JAX_PLATFORMS": "cpu", "NPROC": str(own), "PJRT_NPROC": str(own)}
        sharing = sum(1 for other in self.topology.posts if post.devices[0] in other.devices)
        fraction = f"{0.9 / sharing:.2f}"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        numbers = [name.partition(":")[2] for name in post.devices]
        if visible != [""]:
            numbers = [visible[int(number)].strip() for number in numbers]
        return environ | {"CUDA_VISIBLE_DEVICES": ",".join(numbers), "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction}

    def _peers(self) -> dict[str, dict[str, Any]]:
        """How learners of several processes find each other."""
        found = {}
        for fragment in self.plan.fragments:
            if fragment.replicas > 1 and learns(fragment, self.graph):
                address = f"127.0.0.1:{_free_port()}"
                for rank, name in enumerate(fragment.workers()):
                    found[name] = {"address": address, "processes": fragment.replicas, "rank": rank}
        return found

    # A program

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> Progress:
        """Lets the workers go on for at most so many iterations; comes back after about so many seconds."""
        if not self._loaded:
            self.load(None)
        until = self._told.env_steps + iterations * self.graph.steps_per_iteration
        told = {"do": "go", "until": until, "target": None if math.isinf(target) else target}
        if self.paused or not self._told.started:
            self._until(lambda: self._learners() <= self.paused or stop(), START_S, "start")
            for name in self.processes:
                self._send(name, told)
            self.paused.clear()
            self._told.started = True
            self.tally.skip()
        elif until != self._told.until:
            for name in self._learners():
                self._send(name, told)
        self._told.until = until
        deadline = time.monotonic() + seconds
        learners = self._learners()
        while True:
            self._listen(0.05)
            self.tally.sample()
            over = learners <= self.paused
            moved = self._told.env_steps < self._env_steps()
            if over or stop() or (time.monotonic() > deadline and moved):
                break
        return self._told.progress(self, target)

    def _learners(self) -> set[str]:
        return {name for fragment in self.plan.fragments if learns(fragment, self.graph) for name in fragment.workers()}

    def _env_steps(self) -> int:
        told = [p["env_steps"] for name, p in self.progress.items() if name in self._learners()]
        return min(told, default=0)

    def measure(self) -> None:
        self.tally.begin()

    def report(self, recent: bool = False) -> Report:
        report, learners = self.tally.report(recent), self._learners()
        # Of those who do not learn but compute gradients, the worker's own count of updates is nobody's.
        workers = (w if w.name in learners else replace(w, updates=None) for w in report.workers)
        return replace(report, workers=tuple(workers))

    def _tally(self) -> Tally:
        roles = {post.name: post.fragment for post in self.topology.posts}
        streams = [
            Watched(roles[link.source], roles[link.target], link.kind, ring, arrays_bytes(link.schema))
            for link, ring in self.rings.items()
        ]
        return Tally(roles, streams)

    def save(self) -> dict[str, PyTree]:
        """Pauses everybody between two iterations, and puts their parts together."""
        for stage in self._stages():
            for name in stage - self.paused:
                self._send(name, {"do": "pause"})
            self._until(lambda stage=stage: stage <= self.paused, PAUSE_S, "pause")
        self._saved = {}
        for name in self.processes:
            self._send(name, {"do": "save"})
        self._until(lambda: len(self._saved) == len(self.processes), PAUSE_S, "save")
        arrays: parts.Arrays = {"seed": np.asarray(self.config["seed"], np.uint32)}
        order = sorted(self._saved, key=lambda name: name in self._learners())  # what learners say counts
        for name in order:
            arrays |= self._saved[name]
        saved = parts.join(arrays, carry_types(self.graph, self.built.environment), self.topology, self.host)
        self.carry = saved["carry"]
        return saved

    def rest(self) -> Progress:
        """What workers told while they paused."""
        return self._told.progress(self, math.inf)

    def _stages(self) -> list[set[str]]:
        """Who pauses after whom: between two iterations nothing is on its way.

        Synchronous workers wait for their learner, so it pauses first. Asynchronous ones do not: there it is first
        who makes unrolls, and last who learns from them; but several learners pause where they agree to, and throw away
        what comes meanwhile.
        """
        everybody, learners = set(self.processes), self._learners()
        players = set(self.plan.home("environment").workers())
        servers = {n for node in self.graph.of_kind("act") for n in self.plan.home(node.name).workers()} - players
        others = [players - learners, servers - learners, everybody - players - servers - learners]
        if not self.free:
            return [learners, everybody - learners]
        return [learners, *others] if len(learners) > 1 else [*others, learners]

    def load(self, saved: dict[str, PyTree] | None, env_steps: int = 0) -> int:
        """Gives the workers what to begin from; says how many episodes could not be replayed and were cut."""
        self._loaded = True
        arrays: parts.Arrays = {}
        cut = 0
        if saved is not None:
            agents = {group: spec.agents for group, spec in self.graph.spec.groups.items()}
            arrays = parts.split(saved, self.topology, agents)
            cut = int(np.sum(saved["host"]["cut"])) if saved["host"] else 0
            arrays["env_steps"] = np.asarray(env_steps)
            self._told.env_steps = env_steps
            self._told.iterations = int(arrays["iteration"])
            self._told.versions = sum(int(count) for name, count in arrays.items() if name.startswith("updates."))
        for post in self.topology.posts:
            with contextlib.suppress(BrokenPipeError, TimeoutError):  # its end is noticed by `_listen`
                self.processes[post.name].control.send_arrays({"do": "load"}, self._part(post, arrays))
        return cut

    def _part(self, post: Post, arrays: parts.Arrays) -> parts.Arrays:
        """What one worker needs of a checkpoint."""
        fragment = next(f for f in self.plan.fragments if f.name == post.fragment)
        kinds = {self.graph.nodes[node].kind for node in fragment.nodes}
        after = kinds - {"environment", "act", "rollout"}
        links, _ = self.topology.of(post.name)
        blocks = {b.number for b in self.topology.blocks if b.worker == post.name} | {link.block for link in links}

        def wanted(name: str) -> bool:
            kind, _, rest = name.partition(".")
            if kind == "block":
                return int(rest.partition(".")[0]) in blocks
            if kind == "replays":
                return rest.rpartition(".")[0] in fragment.nodes
            return bool(after) or kind in ("iteration", "env_steps")

        return {name: np.asarray(array) for name, array in arrays.items() if wanted(name)}

    def close(self) -> None:
        """Stops every worker and leaves nothing behind."""
        for name, process in self.processes.items():
            if process.exit_status() is None:
                self._send(name, {"do": "stop"})
        deadline = time.monotonic() + STOP_S
        for process in self.processes.values():
            process.wait(max(0.0, deadline - time.monotonic()))
        for name in self.processes:
            self._hear(name)
        self.launcher.close(STOP_S)
        for ring in self.rings.values():
            ring.close()
        for each in self.stores.values():
            each.close()
        for each in self.bells.values():
            each.close()
        self.rings, self.stores, self.bells = {}, {}, {}

    # What workers say

    def _send(self, name: str, message: dict[str, Any]) -> None:
        try:
            self.processes[name].control.send(message)
            self.bells[name].ring()
        except (BrokenPipeError, TimeoutError):
            pass  # its end is noticed by `_listen`

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            self._listen(0.05)
            if time.monotonic() > deadline:
                late = sorted(set(self.processes) - self.paused)
                raise WorkerFailed(f"{', '.join(late)} did not {what} within {seconds:.0f} s; see {self.run_dir}/logs")

    def _listen(self, seconds: float) -> None:
        """Takes what workers say; an end of one that was not asked for is an error."""
        poll = select.poll()
        by_fd: dict[int, str] = {}
        for name, process in self.processes.items():
            for fd in (process.control.fileno(), process.fileno()):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
                    by_fd[fd] = name
        for name in {by_fd[fd] for fd, _ in poll.poll(seconds * 1000)}:
            failed = self._hear(name)
            status = self.processes[name].exit_status()
            if failed is not None or status is not None:
                failed = failed or self._hear(name)
                raise self._failure(name, failed, status)

    def _hear(self, name: str) -> dict[str, Any] | None:
        control = self.processes[name].control
        if control.fileno() < 0:
            return None
        while (message := control.receive()) is not None:
            value = message.value
            if "status" in value:
                self.status[name] = value["status"]
                self.tally.hear(name, value["status"])
            elif "progress" in value:
                self._note(name, value["progress"])
            elif "paused" in value:
                self.paused.add(name)
            elif "saved" in value:
                self._saved[name] = dict(message.arrays)
            elif "failed" in value:
                return value["failed"]
        return None

    def _note(self, name: str, progress: dict[str, Any]) -> None:
        self.progress[name] = progress
        if progress["rank"]:
            return  # learners of several processes all tell the same
        for node, times in progress["times"].items():
            self.sums.updates[node] = self.sums.updates.get(node, 0) + times
        for node, out in progress["out"].items():
            sums = self.sums.out.setdefault(node, {})
            for key, value in out.items():
                sums[key] = sums.get(key, 0.0) + value

    def _failure(self, name: str, failed: dict[str, Any] | None, status: int | None) -> Exception:
        if failed is not None and failed["user"]:
            return UserError(failed["message"])
        if failed is not None:
            return WorkerFailed(f"{name} failed: {failed['message']}\n{failed['traceback']}")
        how = f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        log = self.processes[name].tail().strip()
        return WorkerFailed(f"{name} {how}" + (f"; its log ends:\n{log}" if log else "; it left no word in its log"))


class _Told:
    """What the session has been told so far."""

    def __init__(self) -> None:
        self.env_steps, self.iterations, self.episodes, self.versions, self.until = 0, 0, 0, 0, 0
        self.started = False

    def progress(self, fleet: Fleet, target: float) -> Progress:
        learners = [p for name, p in fleet.progress.items() if name in fleet._learners()]
        env_steps = min((p["env_steps"] for p in learners), default=self.env_steps)
        iterations = min((p["iterations"] for p in learners), default=self.iterations)
        versions = sum(p["versions"] for p in learners if not p["rank"]) if learners else self.versions
        sums, fleet.sums = fleet.sums, totals.Summed(0, {}, {})
        windows = [p["window"] for p in fleet.progress.values() if p["window"] is not None and not p["rank"]]
        returns = _group_returns(windows)
        filled = sum(window["filled"] for window in windows)
        episodes = _episodes(fleet)
        mean = float(np.mean(list(returns.values()))) if returns else None
        full = windows and all(window["filled"] >= 100 for window in windows)
        progress = Progress(
            iterations=iterations - self.iterations,
            updates=versions - self.versions,
            episodes=max(0, episodes - self.episodes),
            mean_return=mean,
            mean_length=sum(window["length"] for window in windows) / filled if filled else None,
            group_returns=returns,
            out=_means(sums),
            reached=any(p["reached"] for p in learners) or bool(full and mean is not None and mean >= target),
            env_steps=env_steps - self.env_steps,
            staleness=_staleness(learners),
        )
        self.env_steps, self.iterations, self.episodes, self.versions = env_steps, iterations, episodes, versions
        return progress


def _episodes(fleet: Fleet) -> int:
    """Workers with the same groups have each their own episodes; those of other groups saw the same ones."""
    by_groups: dict[tuple[str, ...], int] = {}
    for progress in fleet.progress.values():
        if progress["window"] is not None and not progress["rank"]:
            groups = tuple(sorted(progress["window"]["returns"]))
            by_groups[groups] = by_groups.get(groups, 0) + progress["episodes"]
    return max(by_groups.values(), default=0)


def _group_returns(windows: list[dict[str, Any]]) -> dict[str, float]:
    sums: dict[str, tuple[float, int]] = {}
    for window in windows:
        for group, total in window["returns"].items():
            before, count = sums.get(group, (0.0, 0))
            sums[group] = (before + total, count + window["filled"])
    return {group: total / count for group, (total, count) in sums.items() if count}


def _means(sums: totals.Summed) -> dict[str, float]:
    means = {}
    for node, out in sums.out.items():
        times, prefix = sums.updates.get(node, 0), node.rpartition("/")[0]
        for name, value in out.items():
            if times:
                means[f"{prefix}/{name}" if prefix else name] = value / times
    return means


def _staleness(learners: list[dict[str, Any]]) -> tuple[float, int]:
    """The mean and the most, since the run was started."""
    total = sum(p["staleness"][0] for p in learners)
    count = sum(p["staleness"][1] for p in learners)
    return (total / count if count else 0.0), max((p["staleness"][2] for p in learners), default=0)


def _link_json(link: Link) -> dict[str, Any]:
    return {**asdict(link), "name": link.name, "schema": fields_json(link.schema)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
