"""What holds a run back, by the numbers it gave: one finding, one remedy that fits the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runnel import distributions
from runnel.execution.building import build
from runnel.execution.session.result import setting_of
from runnel.planning.plan import Machine
from runnel.reporting.bottleneck import FragmentSetting, RunSetting, bottleneck
from runnel.runtime.control_messages import PhaseName, Status
from runnel.runtime.usage import StreamUsage, UsageReport, WorkerUsage, single_process_usage
from runnel.runtime.workers.usage_meter import SAMPLE_S, UsageMeter, Watched

ACTOR = frozenset({"environment", "act", "rollout"})
LEARNER = frozenset({"learn"})


def setting(**given: Any) -> RunSetting:
    """Four actors and a learner that run free on sixteen CPUs, unless something else is said."""
    fragments = given.pop("fragments", {"actor": (4, ACTOR), "learner": (1, LEARNER)})
    made = tuple(FragmentSetting(name, replicas, frozenset(kinds)) for name, (replicas, kinds) in fragments.items())
    plain = {"flags": {"actors": 4, "learners": 1}, "envs": 16, "column_blocks": 16, "cpus": 16, "free": True}
    plain |= {"max_staleness": 20}
    return RunSetting(fragments=made, **{**plain, **given})


def report(of: RunSetting, causes: dict[str, str] | None = None, **busy: float) -> UsageReport:
    """What the workers of a setting would have told."""
    workers = []
    for fragment in of.fragments:
        share = busy[fragment.name]
        waits = {(causes or {}).get(fragment.name, "unrolls"): 10 * (1 - share)}
        workers += [
            WorkerUsage(f"{fragment.name}-{i}", fragment.name, share, 10.0, waits) for i in range(fragment.replicas)
        ]
    return UsageReport(tuple(workers))


def sync(**given: Any) -> RunSetting:
    return setting(**{"free": False, "max_staleness": 0, "flags": {"actors": 4}, **given})


def decoupled(**given: Any) -> RunSetting:
    fragments = {
        "environment": (4, {"environment", "rollout"}),
        "inference": (1, {"act"}),
        "learner": (1, LEARNER),
    }
    flags = {"actors": 4, "inference": 1, "learners": 1, "env_splits": 2}
    return setting(**{"fragments": fragments, "flags": flags, **given})


def central(**given: Any) -> RunSetting:
    fragments = {"worker": (2, ACTOR | {"gradient"}), "server": (1, {"apply"})}
    return setting(**{"fragments": fragments, "flags": {"actors": 2}, **given})


def replicated(**given: Any) -> RunSetting:
    fragments = {"replica": (2, ACTOR | LEARNER)}
    return sync(**{"fragments": fragments, "flags": {"learners": 2}, **given})


def fine(**given: Any) -> RunSetting:
    fragments = {"environment": (4, {"environment"}), "learner": (1, {"act", "rollout", "learn"})}
    return sync(**{"fragments": fragments, "flags": {"actors": 4, "env_splits": 1}, **given})


@pytest.mark.parametrize(
    ("of", "busy", "remedy"),
    [
        # Asynchronous: the worker that is always busy sets the pace.
        (setting(), dict(actor=0.39, learner=0.97), "use --learners 2"),
        (setting(cpus=5), dict(actor=0.39, learner=0.97), "use --actors 2, which would not be slower"),
        (setting(column_blocks=15), dict(actor=0.39, learner=0.97), "use --actors 2, which would not be slower"),
        (setting(gpus=1), dict(actor=0.39, learner=0.97), "use --actors 2, which would not be slower"),
        (setting(cpus=5), dict(actor=0.80, learner=0.97), "use a GPU"),
        (setting(gpus=1), dict(actor=0.80, learner=0.97), "use --envs 32, which makes every call larger"),
        (setting(), dict(actor=0.98, learner=0.60), "use --actors 8"),
        (setting(), dict(actor=0.98, learner=0.10), "use --actors 8"),
        (setting(envs=48), dict(actor=0.98, learner=0.10), "use --actors 12"),
        (setting(envs=48), dict(actor=0.98, learner=0.70), "use --actors 6"),
        (setting(cpus=5), dict(actor=0.98, learner=0.60), "use a machine with more CPUs"),
        (
            setting(cpus=5, gpus=1),
            dict(actor=0.98, learner=0.60),
            "use --distribution decoupled --actors 4, which acts on the GPU",
        ),
        (setting(), dict(actor=0.93, learner=0.91), "nothing to change"),
        (setting(cpus=3), dict(actor=0.95, learner=0.50), "use --actors 2"),
        (setting(cpus=1), dict(actor=0.95, learner=0.50), "use --distribution inline"),
        (setting(cpus=1, host=False), dict(actor=0.95, learner=0.50), "use --distribution fused"),
        # A distribution of the user's own, without flags of ours.
        (setting(flags={}), dict(actor=0.98, learner=0.60), "use a machine with more CPUs"),
        (setting(flags={}), dict(actor=0.30, learner=0.99), "use a GPU"),
        # Learners take trajectories only: what is elsewhere keeps them from being several.
        (
            setting(fragments={"actor": (4, ACTOR), "memory": (1, {"replay"}), "learner": (1, LEARNER)}),
            dict(actor=0.39, memory=0.3, learner=0.97),
            "use --actors 2, which would not be slower",
        ),
        # Meeting every unroll: times add up, and those that learn rest while the others play.
        (sync(), dict(actor=0.7, learner=0.25), "use --actors 16"),
        (sync(cpus=5), dict(actor=0.7, learner=0.25), "use a machine with more CPUs"),
        (sync(cpus=5, max_staleness=9), dict(actor=0.7, learner=0.25), "use --distribution async --actors 4"),
        (sync(), dict(actor=0.3, learner=0.6), "use a GPU"),
        (sync(gpus=1), dict(actor=0.3, learner=0.6), "nothing to change"),
        (sync(max_staleness=9), dict(actor=0.3, learner=0.6), "use --distribution async --actors 8"),
        # A layout that says which groups wait is kept.
        (sync(max_staleness=9, mixed=True), dict(actor=0.3, learner=0.6), "use a GPU"),
        (sync(cpus=5, max_staleness=9, mixed=True), dict(actor=0.7, learner=0.25), "use a machine with more CPUs"),
        (replicated(gpus=4), dict(replica=0.99), "use --learners 4"),
        (replicated(gpus=2), dict(replica=0.99), "nothing to change"),
        (
            replicated(),
            dict(replica=0.99),
            "compare with --distribution inline, in case the all-reduce of gradients costs more than it gains",
        ),
        # An exchange every step.
        (decoupled(), dict(environment=0.3, inference=0.5, learner=0.4), "use --set distribution.env_splits=4"),
        (
            decoupled(flags={"actors": 4, "inference": 1, "learners": 1, "env_splits": 4}),
            dict(environment=0.3, inference=0.5, learner=0.4),
            "use --envs 32",
        ),
        (decoupled(), dict(environment=0.5, inference=0.97, learner=0.4), "use --inference 2"),
        (decoupled(cpus=6), dict(environment=0.5, inference=0.97, learner=0.4), "use --actors 2 --inference 2"),
        (decoupled(cpus=6), dict(environment=0.8, inference=0.97, learner=0.4), "use a GPU"),
        (
            decoupled(cpus=6, gpus=1),
            dict(environment=0.8, inference=0.97, learner=0.4),
            "use --envs 32, which makes every call larger",
        ),
        (decoupled(), dict(environment=0.95, inference=0.5, learner=0.4), "use --actors 8"),
        (decoupled(), dict(environment=0.4, inference=0.5, learner=0.96), "use --learners 2"),
        (
            decoupled(cpus=2),
            dict(environment=0.2, inference=0.4, learner=0.3),
            "use --distribution async --actors 1",
        ),
        (fine(), dict(environment=0.2, learner=0.4), "use --set distribution.env_splits=2"),
        (fine(envs=4), dict(environment=0.2, learner=0.4), "use --envs 8"),
        (fine(envs=12), dict(environment=0.2, learner=0.4), "use --distribution coarse --actors 4"),
        (fine(), dict(environment=0.5, learner=0.4), "use --actors 16"),
        # Gradients are as stale as there are others who make them.
        (central(), dict(worker=0.97, server=0.2), "use --actors 8"),
        (central(max_staleness=3), dict(worker=0.97, server=0.2), "use --actors 4"),
        (central(max_staleness=1), dict(worker=0.97, server=0.2), "use a machine with more CPUs"),
    ],
)
def test_of_several_workers(of: RunSetting, busy: dict[str, float], remedy: str) -> None:
    sentence = bottleneck(report(of, **busy), of)
    assert sentence is not None
    assert sentence.rpartition(": ")[2] == remedy
    assert sentence.count("use ") <= 1


def test_the_sentence_says_who_is_busy_and_who_waits_for_what() -> None:
    of = setting()
    causes = {"actor": "room for unrolls"}
    assert bottleneck(report(of, causes, actor=0.39, learner=0.97), of) == (
        "the learner is busy 97% of the time, the 4 actors wait 61% (for room for unrolls): use --learners 2"
    )
    assert bottleneck(report(of, actor=0.93, learner=0.91), of) == (
        "all workers are busy (actor x4 93%, learner 91% busy): nothing to change"
    )
    few = setting(cpus=3)
    assert bottleneck(report(few, actor=0.95, learner=0.5), few) == (
        "5 workers share 3 CPUs (actor x4 95%, learner 50% busy): use --actors 2"
    )


def test_restarts_are_named_where_no_worker_is_busy() -> None:
    of = sync()
    restarts = {"actor-0 sent no heartbeat, in step (env.py, line 7)": 3, "actor-1 was killed": 1}
    assert bottleneck(report(of, actor=0.04, learner=0.01), of, restarts) == (
        "workers were restarted 4 times, and wait most of the time (actor x4 4%, learner 1% busy): "
        "see to why: actor-0 sent no heartbeat, in step (env.py, line 7)"
    )
    busy = report(of, actor=0.7, learner=0.25)
    assert bottleneck(busy, of, restarts) == bottleneck(busy, of)
    idle = report(of, actor=0.04, learner=0.01)
    long = UsageReport(tuple(replace(worker, seconds=7200.0) for worker in idle.workers))
    assert bottleneck(long, of, restarts) == bottleneck(long, of)  # four in two hours are not what it waits for


def test_nothing_is_said_of_workers_that_have_reported_nothing() -> None:
    assert (
        bottleneck(UsageReport((WorkerUsage("actor-0", "actor"), WorkerUsage("learner", "learner", 0.5))), setting())
        is None
    )
    assert bottleneck(single_process_usage("process", {"environment": 0.0, "act": 0.0, "learn": 0.0}), one()) is None


def one(**given: Any) -> RunSetting:
    fragments = {"process": (1, ACTOR | LEARNER)}
    return setting(
        **{"fragments": fragments, "flags": {}, "free": False, "max_staleness": 0, "envs": 8, "cpus": 4, **given}
    )


@pytest.mark.parametrize(
    ("of", "phases", "sentence"),
    [
        (
            one(),
            dict(environment=6.0, act=2.5, learn=1.5),
            "environment (environment 60%, act 25%, learn 15% of the time): use --distribution coarse --actors 4",
        ),
        (
            one(max_staleness=9, cpus=6),
            dict(environment=6.0, act=2.5, learn=1.5),
            "environment (environment 60%, act 25%, learn 15% of the time): use --distribution async --actors 4",
        ),
        (
            one(cpus=1),
            dict(environment=6.0, act=2.5, learn=1.5),
            "environment (environment 60%, act 25%, learn 15% of the time): nothing to change",
        ),
        (
            one(cpus=2),  # two actors would not be a third faster than one process
            dict(environment=4.0, act=3.5, learn=2.5),
            "environment (environment 40%, act 35%, learn 25% of the time): nothing to change",
        ),
        (
            one(max_staleness=9, cpus=2),
            dict(environment=3.5, act=2.5, learn=4.0),
            "learn (environment 35%, act 25%, learn 40% of the time): use --distribution async --actors 1",
        ),
        (
            one(),
            dict(environment=2.0, act=7.0, learn=1.0),
            "act (environment 20%, act 70%, learn 10% of the time): use --envs 16, for which a call costs little more",
        ),
        (
            one(),
            dict(environment=2.0, act=1.0, learn=7.0),
            "learn (environment 20%, act 10%, learn 70% of the time): use a GPU",
        ),
        (
            one(gpus=1),
            dict(environment=2.0, act=1.0, learn=7.0),
            "learn (environment 20%, act 10%, learn 70% of the time): nothing to change",
        ),
        (
            one(host=False),
            dict(rollout=7.0, learn=3.0),
            "rollout (rollout 70%, learn 30% of the time): use --distribution fused",
        ),
        (one(host=False), dict(program=3.0), "everything is one XLA program on the CPU: use a GPU"),
        (
            one(host=False, gpus=1),
            dict(program=3.0),
            "everything is one XLA program on the GPU: use --envs 16, as long as steps per second grow",
        ),
    ],
)
def test_of_one_process(of: RunSetting, phases: dict[str, float], sentence: str) -> None:
    assert bottleneck(single_process_usage("process", phases), of) == sentence


def test_flags_that_are_suggested_are_flags_of_the_distribution_that_is_suggested() -> None:
    for name in ("coarse", "async", "decoupled"):
        assert hasattr(distributions.load(name)(), "actors")
    assert hasattr(distributions.load("decoupled")(), "env_splits")


# Adding up


class Ring:
    """A stream as its launcher sees it."""

    capacity = 4

    def __init__(self) -> None:
        self.waiting, self.sent = 0, 0

    def pending(self) -> int:
        return self.waiting

    def committed(self) -> int:
        return self.sent


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def status(elapsed: float, waited: dict[str, float], steps: float = 0, phase: PhaseName = "working") -> Status:
    return Status(phase, elapsed, waited, {"env_steps": steps})


def test_busy_is_what_was_not_waited_since_measuring_began() -> None:
    tally = UsageMeter({"actor-0": "actor", "learner": "learner"}, [], Clock())
    tally.add("actor-0", status(1.0, {}, phase="compiling"))
    tally.add("actor-0", status(0.0, {"parameters": 0.0}))
    tally.add("actor-0", status(9.0, {"parameters": 9.0}, 100))  # while others compiled
    tally.begin()
    tally.add("actor-0", status(13.0, {"parameters": 9.5, "room in actor-0 -> learner: unroll agent 3": 0.5}, 500))
    actor, learner = tally.report().workers
    assert actor.busy == pytest.approx(0.75)
    assert actor.waits == {"parameters": 0.5, "room for unrolls": 0.5}
    assert (actor.env_steps, actor.per_second) == (500, 100.0)
    assert learner.busy is None


def test_a_pause_is_neither_work_nor_waiting() -> None:
    tally = UsageMeter({"actor": "actor"}, [], Clock())
    tally.add("actor", status(1.0, {}))
    tally.add("actor", status(2.0, {"unrolls": 0.5}))
    tally.skip()
    tally.add("actor", status(8.0, {"unrolls": 6.0}))
    tally.add("actor", status(9.0, {"unrolls": 6.5}))
    (actor,) = tally.report().workers
    assert (actor.busy, actor.seconds) == (0.5, 2.0)


def test_one_suggestion_does_not_undo_another() -> None:
    """Of workers that meet, the learner rests while the others play: it is not counted among those that need a CPU."""

    def with_actors(actors: int) -> RunSetting:
        return sync(cpus=2, fragments={"actor": (actors, ACTOR), "learner": (1, LEARNER)}, flags={"actors": actors})

    one, two = with_actors(1), with_actors(2)
    assert str(bottleneck(report(one, actor=0.7, learner=0.3), one)).endswith("use --actors 2")
    assert str(bottleneck(report(two, actor=0.74, learner=0.34), two)).endswith("use a machine with more CPUs")


def test_a_glance_is_no_judgement() -> None:
    tally = UsageMeter({"actor": "actor"}, [], Clock())
    tally.add("actor", status(1.0, {}, 100))
    tally.add("actor", status(1.2, {"unrolls": 0.2}, 120))
    (actor,) = tally.report().workers
    assert (actor.busy, actor.env_steps) == (None, 120)


def test_a_worker_that_began_again_is_counted_from_there() -> None:
    tally = UsageMeter({"actor": "actor"}, [], Clock())
    for told in (status(50.0, {"unrolls": 40.0}), status(1.0, {"unrolls": 1.0}), status(2.0, {"unrolls": 1.0})):
        tally.add("actor", told)
    (actor,) = tally.report().workers
    assert (actor.busy, actor.seconds) == (1.0, 1.0)


def test_a_run_that_is_over_before_its_streams_were_looked_at_has_them() -> None:
    ring, clock = Ring(), Clock()
    tally = UsageMeter({}, [Watched("actor", "learner", "unroll", ring, 1_000_000)], clock)
    clock.now += SAMPLE_S / 2
    ring.sent = 4
    tally.sample()
    assert not tally.report(recent=True).streams
    (stream,) = tally.report().streams
    assert (stream.source, stream.messages_per_second) == ("actor", pytest.approx(8 / SAMPLE_S))


def test_streams_of_a_kind_are_counted_together() -> None:
    clock, rings = Clock(), [Ring(), Ring()]
    tally = UsageMeter({}, [Watched("actor", "learner", "unroll", ring, 1_000_000) for ring in rings], clock)
    rings[0].waiting, rings[0].sent, rings[1].sent = 4, 6, 4
    clock.now += 2 * SAMPLE_S
    tally.sample()
    tally.sample()  # too soon: nothing happens
    (stream,) = tally.report().streams
    assert (stream.source, stream.target, stream.kind) == ("actor", "learner", "unroll")
    assert stream.fill == pytest.approx(0.5)
    assert stream.messages_per_second == pytest.approx(50.0)
    assert stream.megabytes_per_second == pytest.approx(50.0)


def test_lately_is_the_last_seconds_only() -> None:
    clock = Clock()
    tally = UsageMeter({"actor": "actor"}, [], clock)
    for second in range(1, 31):
        clock.now += 1
        tally.add("actor", status(second, {"unrolls": float(min(second, 20))}))
        tally.sample()
    (whole,), (lately,) = tally.report().workers, tally.report(recent=True).workers
    assert whole.busy == pytest.approx(10 / 29)
    assert lately.busy == 1.0


def test_a_report_as_metrics_and_as_json() -> None:
    streams = (
        StreamUsage("actor", "learner", "unroll", 0.25, 3.0, 1.5),
        StreamUsage("actor", "learner", "value", 0.75, 1.0, 0.1),
    )
    workers = (
        WorkerUsage("a-0", "a", 0.5, 4.0, {"x": 2.0}, env_steps=7),
        WorkerUsage("a-1", "a", 1.0),
        WorkerUsage("b", "b"),
    )
    found = UsageReport(workers, streams)
    assert found.metrics() == {"busy/a": 0.75, "stream/actor-learner/fill": 0.75}
    assert workers[0].json() == {"name": "a-0", "fragment": "a", "busy": 0.5, "env_steps": 7, "waits": {"x": 2.0}}
    assert streams[0].json()["fill"] == 0.25
    assert single_process_usage("process", {"learn": 1.0}).metrics() == {}


def test_what_a_run_was_given_follows_from_what_was_built() -> None:
    asked = distributions.load("decoupled")(actors=2, env_splits=4)  # type: ignore[call-arg]
    built = build("impala", "CartPole-v1", asked, envs=4, machine=Machine(6, ("cuda:0", "cuda:1")))
    made = setting_of(built, [Machine(6, ("cuda:0", "cuda:1"))])
    assert made.flags == {"actors": 2, "inference": 1, "learners": 1, "env_splits": 2}  # in 2 splits: they have 2 each
    assert (made.envs, made.cpus, made.gpus, made.workers, made.host, made.free) == (4, 6, 2, 4, True, True)
    assert [(fragment.name, fragment.steps_envs, fragment.learns) for fragment in made.fragments] == [
        ("environment", True, False),
        ("inference", False, False),
        ("learner", False, True),
    ]
    assert [made.flag(fragment) for fragment in made.fragments] == ["actors", "inference", "learners"]
    assert made.exchanges
