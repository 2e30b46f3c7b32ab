"""The processes of a plan and the memory they share: starting them, replacing one, and putting all to rest."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from runnel.building import Built
from runnel.launch import LocalLauncher, Process
from runnel.launch import Worker as Start
from runnel.plan import Machine, learns
from runnel.runtime.blocks import group_types
from runnel.runtime.journal import Memory
from runnel.runtime.messages import fields_json
from runnel.runtime.topology import Link, Post, Topology
from runnel.transport import bell, shared, store

LONG_SPIN_S = 1e-3
"""How long a worker that has a core of its own looks for what it waits for before it sleeps: being woken takes long."""


class Crew:
    """All workers of a topology. What connects them is made once and outlives each of them."""

    def __init__(
        self, built: Built, topology: Topology, config: dict[str, Any], run_dir: Path, launcher: LocalLauncher,
        machine: Machine, free: bool,
    ):  # fmt: skip
        self.built, self.topology, self.config, self.run_dir = built, topology, config, run_dir
        self.launcher, self.machine, self.free = launcher, machine, free
        self.graph, self.plan = built.graph, built.plan
        self.posts = {post.name: post for post in topology.posts}
        shared.check_room(self._bytes())
        self.processes: dict[str, Process] = {}
        self.bells: dict[str, shared.Bell] = {}
        self.journals: dict[str, Memory] = {}
        self.rings: dict[Link, shared.Ring] = {}
        self.stores: dict[Any, store.Store] = {}
        try:
            for post in topology.posts:
                self.bells[post.name], self.journals[post.name] = shared.Bell.create(), Memory.create()
            self.rings |= {link: shared.create(link.schema, link.slots) for link in topology.links}
            self.stores |= {board: store.Store.create(board.schema) for board in topology.boards}
        except BaseException:
            self.close(0.0)
            raise

    def _bytes(self) -> int:
        streams = sum(shared.size(link.schema, link.slots) for link in self.topology.links)
        return streams + sum(store.size(board.schema) for board in self.topology.boards)

    # Starting

    def start(self, names: Iterable[str] | None = None) -> None:
        """Starts workers, all or those named."""
        posts = [self.posts[name] for name in names] if names is not None else list(self.topology.posts)
        common = self._common()
        (self.run_dir / "logs").mkdir(exist_ok=True)
        if names is None and not all(post.light for post in posts):
            self.launcher.prepare("runnel.workers:prepare", common)
        peers, starts = self._peers(posts), []
        for post in posts:
            job, fds = self._job(post)
            job |= common | {"peers": peers.get(post.name)}
            entry = "runnel.workers:play" if post.light else "runnel.workers:work"
            log = self.run_dir / "logs" / f"{post.name}.log"
            starts.append(Start(post.name, entry, job, fds, post.light, self._environ(post), log=log))
        self.processes |= {process.name: process for process in self.launcher.start_all(starts)}

    def _common(self) -> dict[str, Any]:
        config = {name: self.config[name] for name in ("algorithm", "environment", "distribution", "envs")}
        x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        return {"config": config, "machine": asdict(self.machine), "seed": self.config["seed"], "x64": x64}

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
        fds.append(self.journals[post.name].fileno())
        job: dict[str, Any] = {
            "name": post.name,
            "spin_s": LONG_SPIN_S if len(self.topology.posts) <= self.machine.cpus else bell.SPIN_S,
            "bells": peers,
            "links": [{**asdict(link), "name": link.name, "schema": fields_json(link.schema)} for link in links],
            "boards": [{"group": board.group, "schema": fields_json(board.schema)} for board in boards],
        }
        if post.light:
            job |= self._light(post)
        return job, tuple(fds)

    def _light(self, post: Post) -> dict[str, Any]:
        """What a worker must be told that cannot trace the graph itself."""
        fragment = self.plan.fragment(post.fragment)
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
            fragment = self.plan.fragment(post.fragment)
            others = self.plan.workers - fragment.replicas
            own = 1
            if learns(fragment, self.graph):
                own = max(1, (self.machine.cpus - others) // fragment.replicas)
            return environ | {"JAX_PLATFORMS": "cpu", "NPROC": str(own), "PJRT_NPROC": str(own)}
        sharing = sum(1 for other in self.topology.posts if post.devices[0] in other.devices)
        fraction = f"{0.9 / sharing:.2f}"
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        numbers = [name.partition(":")[2] for name in post.devices]
        if visible != [""]:
            numbers = [visible[int(number)].strip() for number in numbers]
        return environ | {"CUDA_VISIBLE_DEVICES": ",".join(numbers), "XLA_PYTHON_CLIENT_MEM_FRACTION": fraction}

    def _peers(self, posts: Iterable[Post]) -> dict[str, dict[str, Any]]:
        """How learners of several processes find each other."""
        found = {}
        for fragment in {post.fragment: self.plan.fragment(post.fragment) for post in posts}.values():
            if fragment.replicas > 1 and learns(fragment, self.graph):
                address = f"127.0.0.1:{_free_port()}"
                for rank, name in enumerate(fragment.workers()):
                    found[name] = {"address": address, "processes": fragment.replicas, "rank": rank}
        return found

    # Replacing

    def unit(self, name: str) -> set[str]:
        """Those that can only live and die together: learners of several processes are one program."""
        fragment = self.plan.fragment(self.posts[name].fragment)
        joined = fragment.replicas > 1 and learns(fragment, self.graph)
        return set(fragment.workers()) if joined else {name}

    def bury(self, name: str) -> None:
        """A worker is gone: its ends of streams are made ready for whoever takes its place."""
        if name in self.processes:
            self.processes.pop(name).close()
        for link, ring in self.rings.items():
            if link.source == name:
                ring.reset_end("writer")
            if link.target == name:
                ring.reset_end("reader")

    def clear(self) -> None:
        """Empties what connects the workers, none of whom may be at work."""
        for ring in self.rings.values():
            ring.clear()
        for each in self.stores.values():
            each.clear()

    def close(self, seconds: float) -> None:
        """Ends every worker and leaves nothing behind."""
        self.launcher.close(seconds)
        for each in (*self.rings.values(), *self.stores.values(), *self.journals.values(), *self.bells.values()):
            with contextlib.suppress(OSError):
                each.close()
        self.rings, self.stores, self.journals, self.bells = {}, {}, {}, {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
