"""Plans are data: every distribution of the design can be expressed, checked and read without running."""

import dataclasses
import json
from dataclasses import dataclass, replace

import pytest
from toys import Corridor, Drift, GradientReinforce, Reinforce, Tag

from runnel import distributions
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.planning.plan import (
    REST,
    Barrier,
    BoundedStaleness,
    Distribution,
    Fragment,
    Layout,
    Machine,
    build_plan,
    with_evaluation,
)

MACHINE = Machine(cpus=8, devices=("cuda:0", "cuda:1"))

CLUSTER = (
    Machine(cpus=8, devices=("cpu:0",), name="head", address="10.0.0.1"),
    Machine(cpus=16, devices=("cuda:0",), name="z", address="10.0.0.3"),
    Machine(cpus=16, devices=("cuda:0",), name="k", address="10.0.0.2"),
)


def plan(distribution, algorithm=None, environment=None, envs=16, machine=MACHINE):
    environment = environment or Corridor()
    graph = trace(algorithm or Reinforce(), environment.spec, envs)
    return build_plan(distribution, graph, environment, machine)


def nodes(built):
    return {fragment.name: (fragment.replicas, fragment.nodes) for fragment in built.fragments}


def cuts(built):
    return {(cut.source, cut.target, cut.what): cut.pattern for cut in built.cuts}


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


def test_coarse_ships_trajectories_up_and_parameters_down():
    built = plan(distributions.load("coarse")(actors=4))
    assert nodes(built) == {"actor": (4, ("environment", "act", "rollout")), "learner": (1, ("learn",))}
    assert cuts(built) == {
        ("actor", "learner", ("trajectory",)): "gather",
        ("learner", "actor", ("params",)): "broadcast",
    }
    assert built.fragments[0].environments == ((0, 4), (4, 8), (8, 12), (12, 16))
    assert {cut.synchronisation for cut in built.cuts} == {"barrier every unroll"}


def test_of_several_groups_a_cut_tells_whose_values_it_carries():
    built = plan(distributions.load("coarse")(actors=2), Drift(), Tag())
    groups = list(Tag().spec.groups)
    assert len(groups) > 1
    assert {cut.what for cut in built.cuts if cut.source == "actor"} == {(f"trajectory of {g}",) for g in groups}


def test_fine_exchanges_each_observation_once_and_gets_actions_back():
    built = plan(distributions.load("fine")(actors=2))
    (up,) = [cut for cut in built.cuts if cut.source == "environment"]
    assert up.what == ("observation", "first", "reward", "terminated", "truncated", "last_observation")
    # 8 steps of 16 columns: two float32 observations of 2, a float32 reward and three flags
    assert up.bytes_per_iteration == 8 * 16 * (2 * 2 * 4 + 4 + 3)
    assert cuts(built)[("learner", "environment", ("action",))] == "scatter"


def test_replicas_that_learn_all_reduce_their_gradients():
    built = plan(distributions.load("replicated")(learners=4))
    assert cuts(built) == {("replica", "replica", ("gradients",)): "all-reduce"}
    assert list(built.fragments[0].devices) == [("cuda:0",), ("cuda:1",), ("cuda:0",), ("cuda:1",)]


@pytest.mark.parametrize(
    ("algorithm", "envs", "counts"),
    [
        (PPO(), 256, (1, 2, 4, 8, 16, 32, 64)),  # 4 minibatches of whole columns
        (PPO(), 8, (1, 2, 4, 8)),  # of single steps
        (PPO(minibatches=2), 60, (1, 2, 3, 5, 6, 10, 15, 30)),
        (PPO(memory="gru"), 8, (1, 2)),  # of whole columns, however few
        (PPO(memory="gru"), 64, (1, 2, 4, 8, 16)),
        (Reinforce(), 10, (1, 2, 5, 10)),  # no minibatches
        (DQN(capacity=60_000), 15, (1, 3, 5, 15)),  # a replay's batches have no columns
    ],
)
def test_as_many_devices_and_learners_as_blocks_divide_by_share_a_program(algorithm, envs, counts):
    graph = trace(algorithm, Corridor.spec, envs)

    def devices(count):
        machine = Machine(cpus=8, devices=tuple(f"cuda:{i}" for i in range(count)))
        return build_plan(distributions.load("fused")(), graph, Corridor(), machine)

    def learners(count):
        return build_plan(distributions.load("replicated")(learners=count), graph, Corridor(), MACHINE)

    words = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"
    assert f" on cuda:0..{counts[-1] - 1}\n" in devices(counts[-1]).text() or counts[-1] <= 4
    built = devices(1)
    assert built.learners == {"program": counts}
    assert f"devices that could share it: {words}" in built.text()
    assert json.loads(json.dumps(built.json()))["learners"] == {"program": list(counts)}
    for count in range(1, max(counts) + 2):
        for made, those in ((devices, "devices"), (learners, "replicas")):
            if count in counts:
                made(count)
                continue
            with pytest.raises(UserError) as caught:
                made(count)
            if envs % count == 0:  # else the environments themselves do not divide
                assert f"; use {words} {those}, or envs= a multiple of " in str(caught.value)


def test_actors_that_feed_learners_limit_their_number():
    built = plan(distributions.load("coarse")(actors=4), PPO(), envs=256)
    assert built.learners == {"learner": (1, 2, 4)}
    assert "learners that could share it: 1, 2 or 4" in built.text()


def test_learners_of_what_others_make_are_not_shared():
    """Of a replay elsewhere, several learners could not take parts."""
    assert plan(distributions.load("central")(actors=2), GradientReinforce()).learners == {}


def test_a_replay_that_has_no_equal_parts_is_refused_with_the_memory_it_would_need():
    three = Machine(cpus=8, devices=("cuda:0", "cuda:1", "cuda:2"))
    for distribution, machine in ((distributions.load("fused")(), three), (distributions.load("replicated")(3), three)):
        with pytest.raises(UserError) as caught:
            plan(distribution, DQN(capacity=50_000), envs=12, machine=machine)
        assert "'replay' has capacity=50000" in str(caught.value)
        assert "each would need 1.3 MiB for the whole; use capacity=49998 or 50001" in str(caught.value)


def test_environments_gives_every_group_a_fragment_of_its_own():
    built = plan(distributions.load("environments")(actors=2), Drift(), Tag())
    assert set(nodes(built)) == {"environment", "hunter", "runners"}
    assert nodes(built)["runners"] == (1, ("runners/act", "runners/rollout", "runners/learn"))


def test_central_wants_gradient_and_apply():
    built = plan(distributions.load("central")(actors=2), GradientReinforce())
    assert nodes(built)["server"] == (1, ("apply",))
    with pytest.raises(UserError, match=r"central needs `gradient` and `apply`, which Reinforce does not have"):
        plan(distributions.load("central")())


def test_asynchronous_ones_run_at_the_staleness_the_algorithm_declares():
    class Patient(Reinforce):
        max_staleness = 3

    built = plan(distributions.load("async")(actors=2), Patient())
    assert exchanges(built) == {"trajectory": AT_MOST_3, "params": NEWEST}


def exchanges(built):
    """How each cut edge synchronises, by the first thing that it carries."""
    return {cut.what[0]: cut.synchronisation for cut in built.cuts}


class Bearing(GradientReinforce):
    """Learns from what is late."""

    max_staleness = 3


STEPS = {"observation": "barrier every step", "action": "barrier every step"}
UNROLLS = {"trajectory": "barrier every unroll", "params": "barrier every unroll"}
AT_MOST_3, NEWEST = "asynchronous, staleness at most 3", "asynchronous, newest version"
REPLIES = {"observation": "request and reply every step", "action": "request and reply every step"}


@pytest.mark.parametrize(
    ("name", "algorithm", "wanted"),
    [
        ("inline", Reinforce(), {}),
        ("coarse", Reinforce(), UNROLLS),
        ("fine", Reinforce(), STEPS),
        ("environments", Reinforce(), STEPS),
        ("replicated", Reinforce(), {"gradients": "barrier every gradient step"}),
        ("async", Reinforce(), UNROLLS),
        ("decoupled", Reinforce(), {**STEPS, **UNROLLS, "version": "barrier every unroll"}),
        (
            "decoupled",
            Bearing(),
            {**REPLIES, "trajectory": AT_MOST_3, "params": NEWEST, "version": NEWEST},
        ),
        ("central", Bearing(), {"gradients": AT_MOST_3, "state": NEWEST}),
        (
            "central",
            GradientReinforce(),
            {"gradients": "barrier every gradient step", "state": "barrier every gradient step"},
        ),
    ],
)
def test_each_edge_says_how_it_exchanges(name, algorithm, wanted):
    built = plan(distributions.load(name)(), algorithm)
    assert exchanges(built) == wanted
    assert [cut["synchronisation"] for cut in built.json()["cuts"]] == [cut.synchronisation for cut in built.cuts]
    for cut in built.cuts:
        assert f"{cut.pattern}, {cut.synchronisation}" in built.text()


@dataclass(frozen=True)
class Apart4(Distribution):
    """Everything apart: environments, acting, what is kept, and learning."""

    free: bool = False

    def layout(self, graph):
        fragments = (
            Fragment("environment", ("environment", "rollout")), Fragment("act", ("act",)),
            Fragment("store", ("map", "replay")), Fragment("learner", (REST,)),
        )  # fmt: skip
        return Layout(fragments, BoundedStaleness(100) if self.free else Barrier(every="step"))


def test_trajectories_and_batches_do_not_meet_every_step_even_where_steps_do():
    algorithm = DQN(prioritised=True, unroll=4, min_size=16, capacity=64, batch=8)
    assert exchanges(plan(Apart4(), algorithm)) == {
        **STEPS, **UNROLLS, "batch": "barrier every batch", "priorities": "barrier every batch",
        "version": "barrier every unroll",
    }  # fmt: skip
    assert exchanges(plan(Apart4(free=True), algorithm)) == {
        **REPLIES, "trajectory": "asynchronous, staleness at most 100", "params": NEWEST, "version": NEWEST,
        "batch": "asynchronous, in order", "priorities": "asynchronous, as they arrive",
    }  # fmt: skip


def test_decoupled_scales_environments_inference_and_learners_alone():
    built = plan(distributions.load("decoupled")(actors=4, inference=2, learners=2))
    assert {name: replicas for name, (replicas, _) in nodes(built).items()} == {
        "environment": 4, "inference": 2, "learner": 2,
    }  # fmt: skip
    assert cuts(built)[("environment", "inference", ("observation", "first"))] == "route"


def test_a_distribution_nobody_shipped_is_as_good():
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
        ((Fragment("a", (REST,), replicas=0),), "0 replicas asked for"),
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


class Apart(Distribution):
    """So many workers that step, with `beside` among them, and the rest elsewhere."""

    def __init__(self, beside, players, synchronisation):
        self.beside, self.players, self.synchronisation = beside, players, synchronisation

    def layout(self, graph):
        play = Fragment("player", ("environment", "act", "rollout", *self.beside), replicas=self.players)
        return Layout((play, Fragment("rest", (REST,))), self.synchronisation)


@pytest.mark.parametrize(
    ("beside", "players", "synchronisation", "message"),
    [
        (
            ("map",),
            2,
            Barrier(),
            "puts 'map' into fragment 'player', whose 2 workers .* and 'replay' into 'rest'; only tr",
        ),
        (
            ("map",),
            2,
            BoundedStaleness(1),
            "put 'map' into 'rest' or into a fragment of its own, or use 1 player worker",
        ),
        (("map", "replay"), 2, Barrier(), "samples from one replay: use BoundedStaleness, put 'replay' elsewhere"),
        (("map",), 1, Barrier(), None),
        (("map", "replay"), 1, Barrier(), None),
        (("map", "replay"), 2, BoundedStaleness(1_000), None),
        (("map", "replay", "gradient"), 2, Barrier(), None),
    ],
)
def test_only_trajectories_are_put_together_from_parts(beside, players, synchronisation, message):
    """What becomes of an array by a user's function, nobody knows, nor where its environments are."""
    distribution = Apart(beside, players, synchronisation)
    if message is None:
        assert plan(distribution, DQN()).fragments[0].replicas == players
    else:
        with pytest.raises(UserError, match=message):
            plan(distribution, DQN())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": "act"}, r"found nodes='act', wanted a tuple of names"),
        ({"replicas": 2.5}, r"found replicas=2.5, wanted a whole number"),
        ({"devices": "gpu"}, r"found devices='gpu', wanted one of 'cpu', 'one', 'all'"),
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

    with pytest.raises(UserError, match=r"distribution bare: found a tuple, wanted a runnel\.Layout"):
        plan(Bare())


@dataclasses.dataclass(frozen=True)
class Eager(Distribution):
    bound: int = 5

    def layout(self, graph):
        return Layout((Fragment("a", ("environment", "act")), Fragment("b", (REST,))), BoundedStaleness(self.bound))


def test_nobody_runs_further_ahead_than_the_algorithm_bears():
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


def test_a_layout_that_fails_is_told_with_its_place():
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


def test_machines_that_are_not_used_or_crowded_are_told():
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


def test_steps_that_cross_are_told_with_a_remedy():
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
    with pytest.raises(UserError, match="found several called a, wanted one or more, each with a name of its own"):
        plan(distributions.load("coarse")(), machine=[replace(MACHINE, name="a"), replace(MACHINE, name="a")])
    with pytest.raises(UserError, match="found none"):
        plan(distributions.load("coarse")(), machine=[])


def test_a_machine_survives_json():
    assert Machine.from_json(json.loads(json.dumps(dataclasses.asdict(CLUSTER[1])))) == CLUSTER[1]
