"""Plans are data: every distribution of the design can be expressed, checked and read without running."""

import dataclasses
import json
from dataclasses import replace

import pytest
from planned import MACHINE, cuts, nodes, plan
from toys import Drift, GradientReinforce, Reinforce, Tag

from runnel import distributions
from runnel.errors import UserError
from runnel.planning.plan import (
    REST,
    Barrier,
    BoundedStaleness,
    Distribution,
    Fragment,
    Layout,
    Machine,
    with_evaluation,
)

CLUSTER = (
    Machine(cpus=8, devices=("cpu:0",), name="head", address="10.0.0.1"),
    Machine(cpus=16, devices=("cuda:0",), name="z", address="10.0.0.3"),
    Machine(cpus=16, devices=("cuda:0",), name="k", address="10.0.0.2"),
)


def test_all_nine_distributions_of_the_design_make_a_plan():
    assert distributions.names() == [
        "inline", "fused", "coarse", "fine", "replicated", "environments", "central", "async", "decoupled",
    ]  # fmt: skip
    for name in distributions.names():
        built = plan(distributions.load(name)(), GradientReinforce())
        assert built.distribution == name
        assert sorted(n for f in built.fragments for n in f.nodes) == sorted(
            ["environment", "act", "rollout", "gradient", "apply"]
        )
        written = json.loads(json.dumps(built.json()))
        assert written["workers"] == built.workers
        assert {"staleness", "limits", "in_step"} <= {*written}
        assert not {"staleness_updates", "limit_iterations", "step_synchronous"} & {*written}
        assert name in built.text()


def test_environments_gives_every_group_a_fragment_of_its_own():
    built = plan(distributions.load("environments")(actors=2), Drift(), Tag())
    assert set(nodes(built)) == {"environment", "hunter", "runners"}
    assert nodes(built)["runners"] == (1, ("runners/act", "runners/rollout", "runners/learn"))


def test_decoupled_scales_environments_inference_and_learners_alone():
    built = plan(distributions.load("decoupled")(actors=4, inference=2, learners=2))
    assert {name: replicas for name, (replicas, _) in nodes(built).items()} == {
        "environment": 4, "inference": 2, "learner": 2,
    }  # fmt: skip
    assert cuts(built)[("environment", "inference", ("observation", "first"))] == "route"


def test_a_distribution_of_the_users_own_is_as_good():
    @dataclasses.dataclass(frozen=True)
    class Odd(Distribution):
        def layout(self, graph):
            return Layout(
                (
                    Fragment("players", ("environment", "act"), replicas=2),
                    Fragment("rest", (REST,), devices="all"),
                ),
                BoundedStaleness(graph.algorithm.max_staleness),
            )

    built = plan(Odd())
    # A rollout that nobody names is put together where the steps are made.
    assert nodes(built) == {"players": (2, ("environment", "act", "rollout")), "rest": (1, ("learn",))}
    assert built.fragments[1].devices == (("cuda:0", "cuda:1"),)


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        (
            (Fragment("a", ("act", "environment")),),
            "assigns node 'learn' to no fragment; .* REST among a fragment's nodes",
        ),
        (
            (Fragment("a", ("act", "environment")), Fragment("a", (REST,))),
            "bad has 2 fragments named 'a'; each needs its own name",
        ),
        (
            (Fragment("a", (REST,)), Fragment("b", (REST,))),
            "to fragments a and b; every node needs exactly one",
        ),
        ((Fragment("a", (REST,), replicas=0),), "a: found replicas=0, expected 1 or more"),
        ((Fragment("evaluator", (REST,)),), "bad has a fragment named 'evaluator', as workers that evaluate are"),
        ((Fragment("a", ("enviroment",)), Fragment("b", (REST,))), "no node 'enviroment'; did you mean 'environment'"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(fragments, message):
    @dataclasses.dataclass(frozen=True)
    class Bad(Distribution):
        def layout(self, graph):
            return Layout(fragments, Barrier())

    with pytest.raises(UserError, match=message):
        plan(Bad())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": "act"}, r"found nodes='act', expected a tuple of names"),
        ({"replicas": 2.5}, r"found replicas=2.5, expected a whole number"),
        ({"devices": "gpu"}, r"found devices='gpu', expected one of 'cpu', 'one', 'all'"),
        ({"env_splits": 0}, r"found env_splits=0, expected a whole number, 1 or more"),
    ],
)
def test_a_fragment_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(UserError, match=f"fragment a: {message}"):
        Fragment(**{"name": "a", "nodes": ("act",), **wrong})


def test_what_is_no_layout_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Bare(Distribution):
        def layout(self, graph):
            return (Fragment("a", (REST,)),)

    with pytest.raises(UserError, match=r"distribution bare: found a tuple, expected a runnel\.Layout"):
        plan(Bare())


@dataclasses.dataclass(frozen=True)
class Eager(Distribution):
    bound: int = 5

    def layout(self, graph):
        return Layout((Fragment("a", ("environment", "act")), Fragment("b", (REST,))), BoundedStaleness(self.bound))


def test_no_actor_runs_further_ahead_than_the_algorithm_tolerates():
    class Patient(Reinforce):
        max_staleness = 3

    built = plan(Eager(5), Patient())
    assert built.staleness_updates == {"agent": 3}
    assert built.notes[0].startswith("Patient declares max_staleness 3: ")
    built = plan(Eager(2), Patient())
    assert built.staleness_updates == {"agent": 2}
    assert built.notes[0].startswith("Patient declares max_staleness 3, the distribution allows 2: ")
    with pytest.raises(UserError, match=r"found BoundedStaleness\(-1\), expected a whole number of updates, 0 or more"):
        plan(Eager(-1))


def test_environments_must_divide():
    with pytest.raises(UserError, match=r"envs=10 does not divide over 4 actors; use envs=8 or 12"):
        plan(distributions.load("coarse")(actors=4), envs=10)
    with pytest.raises(UserError, match=r"envs=3 does not divide over 2 devices; use envs=2 or 4"):
        plan(distributions.load("fused")(), envs=3)


def test_an_unknown_distribution_offers_the_nearest():
    with pytest.raises(UserError, match=r"no distribution 'inlnie'; did you mean 'inline' or 'fine'"):
        distributions.load("inlnie")


def test_a_layout_that_fails_is_reported_with_its_place():
    @dataclasses.dataclass(frozen=True)
    class Broken(Distribution):
        def layout(self, graph):
            return Layout((Fragment("a", (graph.missing,)),))

    with pytest.raises(UserError, match=r"layout of distribution broken fails \(.*test_plan.py:\d+\): AttributeError"):
        plan(Broken())


def test_a_barrier_is_every_step_or_every_unroll():
    with pytest.raises(UserError, match="expected 'step' or 'unroll'"):
        Barrier(every="epoch")


# Several machines


def test_one_machine_of_whatever_name_gives_the_same_plan():
    here, named = (plan(distributions.load("coarse")(), machine=m) for m in (MACHINE, [replace(MACHINE, name="a")]))
    assert here.hosts == named.hosts == {}
    assert here.text() == named.text()
    assert (here.host("learner"), named.host("learner")) == ("here", "a")
    assert dataclasses.replace(named, machines=()) == here


def test_every_worker_has_its_machine_and_devices_as_that_calls_them():
    built = plan(distributions.load("coarse")(actors=8), machine=CLUSTER)
    assert list(built.hosts) == [*(f"actor-{i}" for i in range(8)), "learner"]
    assert built.hosts["learner"] == "k"  # of two that are alike the first by name
    assert built.fragment("learner").devices == (("cuda:0",),)
    assert [machine.name for machine in built.machines] == ["head", "k", "z"]
    again = plan(distributions.load("coarse")(actors=8), machine=[CLUSTER[0], CLUSTER[2], CLUSTER[1]])
    assert again == built


def test_a_plan_of_several_machines_tells_who_runs_where():
    built = plan(distributions.load("coarse")(actors=8), machine=CLUSTER)
    lines = built.text().splitlines()
    at = lines.index("machines")
    assert lines[at + 1 : at + 4] == [
        "  head (10.0.0.1)  8 CPUs, cpu:0  actor-4",
        "  k (10.0.0.2)  16 CPUs, cuda:0  actor-0..3, learner",
        "  z (10.0.0.3)  16 CPUs, cuda:0  actor-5..7",
    ]
    told = json.loads(json.dumps(built.json()))
    assert told["hosts"]["actor-4"] == "head"
    assert [Machine.from_json(each) for each in told["machines"]] == list(built.machines)


def test_machines_that_are_not_used_or_crowded_are_reported():
    built = plan(distributions.load("inline")(), machine=CLUSTER)
    assert built.hosts == {"process": "head"}
    (note,) = built.notes
    assert note.startswith("k and z are not used: inline is a single process and runs on head")
    assert note.endswith("k has 1 accelerator: start the run there")
    (note,) = plan(distributions.load("coarse")(actors=1), machine=CLUSTER).notes
    assert note.startswith("head and z are not used: 2 workers went to others")
    (note,) = plan(distributions.load("replicated")(), machine=CLUSTER).notes
    assert note == "head is not used: all workers take accelerators, which other machines have"
    small = [replace(machine, cpus=2) for machine in CLUSTER]
    (note,) = plan(distributions.load("coarse")(actors=8), machine=small).notes
    wanted = "there are more workers than CPUs on head (3 on 2), k (3 on 2) and z (3 on 2): fewer would not be slower"
    assert note == wanted


def test_steps_that_cross_are_reported_with_a_remedy():
    alike = [Machine(8, ("cpu:0",), name) for name in ("a", "b", "c")]

    def note(name, machine=alike, **flags):
        notes = plan(distributions.load(name)(**flags), machine=machine).notes
        return [note for note in notes if "crosses" in note]

    (told,) = note("decoupled", actors=4)
    assert "every step of 2 of 4 workers that step environments crosses the network to inference" in told
    assert told.endswith("--inference 3 keeps them where they are")
    assert not note("decoupled", actors=4, inference=3)
    (told,) = note("fine", actors=4)
    assert "to learner: coarse and async act where the environments are" in told
    (told,) = note("decoupled", CLUSTER, actors=4, inference=4)
    assert "head has no accelerator for it" in told


def test_a_plan_shows_the_machines_of_evaluation_workers():
    small = [Machine(3, ("cpu:0",), "a"), Machine(4, ("cpu:0",), "b")]
    built = with_evaluation(plan(distributions.load("coarse")(actors=4), machine=small), 3)
    assert sorted(built.hosts.values()) == ["a", "a", "b", "b", "b"]
    assert built.evaluation == {"evaluator-0": "a", "evaluator-1": "b", "evaluator-2": "the driver"}
    lines = built.text().splitlines()
    assert any(line.startswith("  a ") and line.endswith("evaluator-0") for line in lines)
    assert any(line.startswith("  b ") and line.endswith("evaluator-1") for line in lines)
    assert "  the driver  evaluator-2" in lines
    assert json.loads(json.dumps(built.json()))["evaluation"] == built.evaluation
    alone = plan(distributions.load("coarse")(actors=4))
    assert with_evaluation(alone, 3) == alone


def test_machines_need_names_of_their_own():
    with pytest.raises(UserError, match="found several called a, expected one or more, each with a name of its own"):
        plan(distributions.load("coarse")(), machine=[replace(MACHINE, name="a"), replace(MACHINE, name="a")])
    with pytest.raises(UserError, match="found none"):
        plan(distributions.load("coarse")(), machine=[])


def test_a_machine_survives_json():
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(CLUSTER[1])))) == CLUSTER[1]
