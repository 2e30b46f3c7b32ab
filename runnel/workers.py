"""Where worker processes begin: from a job of JSON, descriptors and a line to the launcher, to a worker at work.

`play` is the entry of workers that play host environments, and never imports JAX; `work` is that of all others.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from runnel import envs as environments
from runnel.environment import HostEnvironment
from runnel.runtime.ports import In, Out, Station, Stopped
from runnel.transport import shared, store
from runnel.transport.stream import Field, Schema

_CACHE: dict[str, Any] = {}
"""What a fork server has built for all workers that come of it."""


def play(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Plays host environments."""
    from runnel.runtime.light import Light
    from runnel.runtime.messages import GroupTypes, fields_of

    with _attached(job, control, fds) as (station, _, ports, stores):
        world = environments.make(job["environment"]["name"], **job["environment"]["settings"])
        assert isinstance(world, HostEnvironment)
        types = {}
        for group, told in job["groups"].items():
            (action,), extras, memory = (fields_of(told[name]) for name in ("action", "extras", "memory"))
            types[group] = GroupTypes(world.spec.groups[group], action, extras, memory, told["real"])

        def find(kind: str, group: str, block: int) -> list[Any]:
            return [p for link, p in ports if (link["kind"], link["group"], link["block"]) == (kind, group, block)]

        worker = Light(
            station,
            types,
            job["rolled"],
            job["unroll"],
            job["discounts"],
            {number: range(start, stop) for number, start, stop in job["blocks"]},
            find,
            [end.reader() for _, end in stores],
            lambda indices: world.open(indices, job["seed"]),
            job["free"],
            _loaded(station),
        )
        worker.run()


def prepare(job: dict[str, Any]) -> None:
    """Builds what all workers of a run need, once, in the server they are forked from."""
    import jax

    jax.config.update("jax_enable_x64", job["x64"])
    _built(job)


def work(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Acts and learns; plays JAX environments, or host environments whose policies it has."""
    from runnel.configure import configure_jax
    from runnel.environment import JaxEnvironment, is_traceable
    from runnel.envs.stepped import Stepped
    from runnel.runtime.assembly import Assignment, Ends
    from runnel.runtime.spmd import Spmd, join
    from runnel.runtime.topology import wire
    from runnel.runtime.worker import Worker

    configure_jax()
    with _attached(job, control, fds) as (station, bells, ports, stores):
        if job["peers"] is not None:
            join(**job["peers"])
        built = _built(job)
        traced = is_traceable(built.environment)
        topology = wire(built.plan, built.graph, not traced)
        post = next(post for post in topology.posts if post.name == job["name"])
        links, boards = topology.of(post.name)
        own = dict(zip(links, (port for _, port in ports), strict=True))
        readers, writers = {}, {}
        for board, (_, end) in zip(boards, stores, strict=True):
            if board.source == post.name:
                writers[board.group] = (board, end.writer([bells[name] for name in board.targets]))
            else:
                readers[board.group] = (board, end.reader())
        world: Any = Stepped(built.environment) if traced else built.environment  # type: ignore[arg-type]
        assignment = Assignment(
            station,
            built.graph,
            built.plan,
            topology,
            post,
            Ends(own, readers, writers),
            job["seed"],
            built.environment if isinstance(built.environment, JaxEnvironment) and traced else None,
            lambda indices: world.open(indices, job["seed"]),
            _loaded(station),
            Spmd(len(post.devices)) if job["peers"] is not None or len(post.devices) > 1 else None,
        )
        Worker(assignment).run()


def _built(job: dict[str, Any]) -> Any:
    """What the run is made of, as the launcher built it."""
    from runnel import portable
    from runnel.algorithm import Algorithm
    from runnel.building import build
    from runnel.plan import Distribution, Machine

    config = job["config"]
    key = json.dumps([config, job["machine"]], sort_keys=True)
    if key not in _CACHE:
        machine = Machine(job["machine"]["cpus"], tuple(job["machine"]["devices"]))
        _CACHE[key] = build(
            portable.from_json(config["algorithm"], Algorithm),
            config["environment"]["name"],
            portable.from_json(config["distribution"], Distribution),
            config["envs"],
            env_settings=config["environment"]["settings"],
            machine=machine,
        )
    return _CACHE[key]


def _loaded(station: Station) -> dict[str, Any]:
    """The worker's part of a checkpoint, or nothing; the launcher tells it first."""
    while True:
        message = station.line.receive(1.0)
        if message is not None:
            if message.value["do"] == "stop":
                raise Stopped
            assert message.value["do"] == "load", message.value
            return dict(message.arrays)
        if station.line.closed:
            raise Stopped


@contextlib.contextmanager
def _attached(job: dict[str, Any], control: Any, fds: Sequence[int]) -> Iterator[Any]:
    """The station, ports and stores of a worker: bells come first among the descriptors, then streams, then stores."""
    rest = list(fds)
    own = shared.Bell.attach((rest.pop(0), rest.pop(0)), job["spin_s"])
    bells = {name: shared.Bell.attach((rest.pop(0), rest.pop(0))) for name in job["bells"]}
    station = Station(job["name"], own, control)
    rings, ports = [], []
    for link in job["links"]:
        ring = shared.Ring.attach(rest.pop(0), _schema(link["schema"]), link["slots"])
        rings.append(ring)
        if link["source"] == job["name"]:
            port: Any = Out(station, ring.writer(own, bells[link["target"]]), link["name"], link["turn"], link["turns"])
        else:
            port = In(
                station, ring.reader(own, bells[link["source"]]), link["name"], link["source_turn"],
                link["source_turns"],
            )  # fmt: skip
        ports.append((link, port))
    stores = [(board, store.Store.attach(rest.pop(0), _schema(board["schema"]))) for board in job["boards"]]
    try:
        yield station, bells, ports, stores
    except Stopped:
        pass
    finally:
        with contextlib.suppress(OSError):
            station.report()


def _schema(data: Sequence[Any]) -> Schema:
    return tuple(Field(tuple(shape), dtype) for shape, dtype in data)
