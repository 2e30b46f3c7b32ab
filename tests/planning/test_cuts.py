"""The cut edges of a plan: what travels between fragments, how often, by which channel, and how both ends wait."""

from dataclasses import dataclass

import pytest
from planned import cuts, exchanges, nodes, plan
from toys import Corridor, Drift, GradientReinforce, Reinforce, Tag

from runnel import distributions
from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.graph.flow import trace
from runnel.graph.nodes import tree_bytes
from runnel.planning.plan import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout


class Bearing(GradientReinforce):
    """Learns from what is late."""

    max_staleness = 3


STEPS = {"observation": "barrier every step", "action": "barrier every step"}
UNROLLS = {"trajectory": "barrier every unroll", "params": "barrier every unroll"}
AT_MOST_3, NEWEST = "asynchronous, staleness at most 3", "asynchronous, newest version"
REPLIES = {"observation": "request and reply every step", "action": "request and reply every step"}


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


def test_asynchronous_ones_run_at_the_staleness_the_algorithm_declares():
    class Patient(Reinforce):
        max_staleness = 3

    built = plan(distributions.load("async")(actors=2), Patient())
    assert exchanges(built) == {"trajectory": AT_MOST_3, "params": NEWEST}


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


@pytest.mark.parametrize(
    ("name", "algorithm", "wanted"),
    [
        ("inline", Reinforce(), {}),
        ("coarse", Reinforce(), {"trajectory": ("unroll", "rollout"), "params": ("store", "learn")}),
        ("fine", Reinforce(), {"observation": ("request", "environment"), "action": ("reply", "act")}),
        ("replicated", Reinforce(), {"gradients": ("collective", "")}),
        ("central", GradientReinforce(), {"gradients": ("value", "gradient"), "state": ("store", "apply")}),
    ],
)
def test_each_edge_has_the_channel_of_its_node(name, algorithm, wanted):
    built = plan(distributions.load(name)(), algorithm)
    assert {cut.what[0]: (cut.channel, cut.node) for cut in built.cuts} == wanted


def test_memory_travels_once_an_unroll_beside_the_actions():
    built = plan(distributions.load("decoupled")(env_splits=1), A2C(memory="gru"))
    replies = [cut for cut in built.cuts if cut.channel == "reply"]
    assert [cut.what for cut in replies] == [("action", "extras"), ("memory",)]
    assert {cut.node for cut in replies} == {"act"}


def test_a_broadcast_counts_for_each_replica_and_learners_exchange_gradients_of_their_parameters():
    algorithm = Reinforce()
    (params,) = [cut for cut in plan(distributions.load("coarse")(actors=4), algorithm).cuts if cut.channel == "store"]
    (alone,) = [cut for cut in plan(distributions.load("coarse")(actors=1), algorithm).cuts if cut.channel == "store"]
    assert (params.pattern, alone.pattern) == ("broadcast", "send")
    assert params.bytes_per_iteration == 4 * alone.bytes_per_iteration
    (gradients,) = plan(distributions.load("replicated")(learners=2), algorithm).cuts
    assert gradients.bytes_per_iteration == 2 * alone.bytes_per_iteration


def test_workers_that_compute_gradients_get_the_whole_state_and_not_its_parameters_again():
    built = plan(distributions.load("central")(actors=2), GradientReinforce())
    (state,) = [cut for cut in built.cuts if cut.channel == "store"]
    whole = trace(GradientReinforce(), Corridor().spec, 16).states["agent"]
    assert (state.what, state.bytes_per_iteration) == (("state",), 2 * tree_bytes(whole))
