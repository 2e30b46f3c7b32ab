"""Every cut edge has a slack; a group's staleness is the sum along its cycle."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from aging import Ages, TeamAges
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Corridor, Tag

from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.planning.machine import Machine
from runnel.planning.pace import Pace, paces
from runnel.planning.plan import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout, build_plan
from runnel.planning.synchronisation import Synchronisation

MACHINE = Machine(cpus=8, devices=("cpu:0",))
ACTOR = Fragment("actor", ("environment", "act", "rollout"), replicas=2)
# The first map is named as its kind is, so it goes where nothing else is named.
CHAIN = (ACTOR, Fragment("first", (REST,)), Fragment("second", ("map2",)), Fragment("learner", ("learn",)))
TEAMS = (ACTOR, *(Fragment(f"{group}-learner", (f"{group}/learn",)) for group in ("hunter", "runners")))
SERVED = (
    Fragment("environment", ("environment", "rollout"), replicas=2),
    Fragment("inference", ("act",)),
    Fragment("learner", (REST,)),
)
SERVED_APART = (
    SERVED[0],
    *(Fragment(f"{group}-inference", (f"{group}/act",)) for group in ("hunter", "runners")),
    *TEAMS[1:],
)
STEP = Barrier("step")


@dataclass(frozen=True)
class Given(Distribution):
    fragments: tuple[Fragment, ...]
    synchronisation: Any = field(default_factory=Barrier)
    edges: Any = field(default_factory=dict)

    def layout(self, graph):
        return Layout(self.fragments, self.synchronisation, self.edges)


def planned(fragments, synchronisation, edges: Any = None, algorithm=None, teams=False):
    environment = Tag() if teams else Corridor()
    algorithm = algorithm or (TeamAges(bound=100) if teams else Ages(maps=2, bound=100))
    graph = trace(algorithm, environment.spec, 4)
    return build_plan(Given(fragments, synchronisation, edges or {}), graph, environment, MACHINE), graph


def of_slack(updates):
    return BoundedStaleness(updates) if updates else Barrier()


DATA = [("rollout", "map"), ("map", "map2"), ("map2", "learn")]


@settings(deadline=None)  # planning takes as long as the machine is busy
@given(st.integers(0, 9), st.dictionaries(st.sampled_from([*DATA, ("learn", "act")]), st.integers(0, 9)))
def test_staleness_is_the_sum_of_the_slacks_along_the_cycle(rest, named):
    plan, graph = planned(CHAIN, of_slack(rest), {ends: of_slack(slack) for ends, slack in named.items()})
    total = sum(named.values()) + (rest if any(ends not in named for ends in DATA) else 0)
    assert plan.staleness_updates == {"agent": total}
    assert sum(cut.slack or 0 for cut in plan.cuts) == total
    assert paces(plan, graph) == {"agent": Pace(total, in_order=True)}
    assert plan.synchronous == (not total)


def test_no_sum_exceeds_what_the_algorithm_declares():
    plan, _ = planned(CHAIN, BoundedStaleness(3), {("map", "map2"): BoundedStaleness(9)}, Ages(maps=2, bound=5))
    assert plan.staleness_updates == {"agent": 5}
    assert plan.notes[0].startswith("Ages declares max_staleness 5: ")


def test_of_several_paths_the_longest_counts():
    """A replay takes trajectories by one path, and the learner what was sampled by another."""
    fragments = (ACTOR, Fragment("store", ("replay", "map")), Fragment("learner", (REST,)))
    edges = {("rollout", "map"): BoundedStaleness(2), ("replay", "learn"): BoundedStaleness(3)}
    plan, _ = planned(fragments, Barrier(), edges, Ages(replayed=1, bound=100))
    assert plan.staleness_updates == {"agent": 5}
    assert {cut.what[0]: cut.synchronisation for cut in plan.cuts} == {
        "trajectory": "asynchronous, staleness at most 2",
        "batch": "asynchronous, staleness at most 3",
        "params": "asynchronous, newest version",
    }


def test_an_iteration_of_more_updates_than_the_sum_waits_at_a_barrier():
    plan, graph = planned(
        (ACTOR, Fragment("learner", (REST,))), BoundedStaleness(2), algorithm=Ages(replayed=3, bound=9)
    )
    assert plan.staleness_updates == {"agent": 0}
    assert paces(plan, graph) == {"agent": Pace(0, in_order=True)}
    assert {cut.synchronisation for cut in plan.cuts} == {"barrier every unroll"}
    assert "the distribution allows 2, but an iteration makes up to 3 updates: actors wait" in plan.notes[0]


class Own(Synchronisation):
    """A user's own."""

    def __init__(self, slack):
        self._slack = slack

    @property
    def slack(self):
        return self._slack

    def __str__(self):
        return f"own of {self._slack}"


class Lockstep(Own):
    """A barrier of a user's own."""

    asynchronous = False


def test_plans_call_a_synchronisation_as_it_calls_itself_unless_the_algorithm_tolerates_less():
    fragments = (ACTOR, Fragment("learner", (REST,)))
    for synchronisation, bound, called in [
        (Own(3), 9, "own of 3"), (Own(3), 2, "asynchronous, staleness at most 2"), (Own(3), 0, "barrier every unroll"),
        (Lockstep(0), 9, "own of 0"), (Barrier(), 9, "barrier every unroll"), (STEP, 9, "barrier every unroll"),
    ]:  # fmt: skip
        plan, _ = planned(fragments, synchronisation, algorithm=Ages(bound=bound))
        assert {cut.synchronisation for cut in plan.cuts if cut.node == "rollout"} == {called}
    plan, _ = planned(CHAIN, Barrier(), {("map", "map2"): Own(4)})
    assert [cut.synchronisation for cut in plan.cuts if cut.node == "map"] == ["own of 4"]


def test_a_synchronisation_of_a_users_own_has_a_whole_slack():
    fragments = (ACTOR, Fragment("learner", (REST,)))
    plan, _ = planned(fragments, Own(3), algorithm=Ages(bound=9))
    assert plan.staleness_updates == {"agent": 3}
    for wrong in (2.0, -4, True, None):
        for synchronisation, edges in ((Own(wrong), {}), (Barrier(), {("rollout", "learn"): Own(wrong)})):
            with pytest.raises(
                UserError, match=r"found slack .* of Own, expected a whole number of updates, 0 or more"
            ):
                planned(fragments, synchronisation, edges, Ages(bound=9))
    twice = {("rollout", "learn"): Own(1), ("rollout", "agent/*"): Own(2)}
    with pytest.raises(UserError, match="twice, with own of 1 and own of 2"):
        planned(fragments, Barrier(), twice, Ages(bound=9))


def test_one_group_waits_and_another_does_not():
    plan, graph = planned(TEAMS, Barrier(), {("runners/rollout", "runners/learn"): BoundedStaleness(4)}, teams=True)
    assert plan.staleness_updates == {"hunter": 0, "runners": 4}
    # Where another group waits, unrolls are taken in order: nothing is thrown away at a pause.
    assert paces(plan, graph) == {"hunter": Pace(0, in_order=True), "runners": Pace(4, in_order=True)}
    assert not plan.synchronous
    assert {cut.what[0]: cut.synchronisation for cut in plan.cuts} == {
        "trajectory of hunter": "barrier every unroll",
        "trajectory of runners": "asynchronous, staleness at most 4",
        "params of hunter": "barrier every unroll",
        "params of runners": "asynchronous, newest version",
    }
    assert plan.notes[0].startswith(
        "TeamAges declares max_staleness 100, the distribution allows hunter 0, runners 4: "
    )


def test_what_acts_may_wait_every_step_while_the_learner_does_not():
    plan, graph = planned(SERVED, BoundedStaleness(4), {("environment", "act"): STEP}, Ages(bound=9))
    assert (plan.staleness_updates, plan.step_synchronous) == ({"agent": 4}, {"agent"})
    assert paces(plan, graph) == {"agent": Pace(4, in_order=False)}
    assert {cut.what[0]: cut.synchronisation for cut in plan.cuts} == {
        "observation": "barrier every step",
        "action": "barrier every step",
        "trajectory": "asynchronous, staleness at most 4",
        "params": "asynchronous, newest version",
        "version": "asynchronous, newest version",
    }
    free, _ = planned(SERVED, BoundedStaleness(4), algorithm=Ages(bound=9))
    assert free.step_synchronous == frozenset()
    assert free.cuts[0].synchronisation == "request and reply every step"


def test_a_server_acts_in_step_for_all_groups_or_for_none():
    edges = {("environment", "hunter/act"): STEP}
    plan, _ = planned((SERVED[0], SERVED[1], *TEAMS[1:]), BoundedStaleness(4), edges, teams=True)
    assert plan.step_synchronous == {"hunter", "runners"}


@pytest.mark.parametrize(
    ("fragments", "synchronisation", "edges", "teams", "message"),
    [
        (CHAIN, Barrier(), [("rollout", "map")], False, r"found edges=\[.*expected a mapping such as \{\('roll"),
        (CHAIN, Barrier(), {"rollout": Barrier()}, False, "expected two nodes and a synchronisation"),
        (CHAIN, Barrier(), {("rollout", "map"): 3}, False, "expected two nodes and a synchronisation"),
        (CHAIN, 3, {}, False, r"found synchronisation=3, expected Barrier\(...\) or BoundedStaleness"),
        (CHAIN, Barrier(), {("rolout", "map"): Barrier()}, False, "no node 'rolout'; did you mean 'rollout'"),
        (CHAIN, Barrier(), {("*", "map"): Barrier()}, False, r"there is no node '\*'"),
        (CHAIN, Barrier(), {("map", "rollout"): Barrier()}, False, "which the graph does not have; its edges are env"),
        (CHAIN, Barrier(), {("act", "rollout"): STEP}, False, "inside fragment 'actor'; only edges between fragments"),
        (CHAIN, Barrier(), {("rollout", "map"): STEP}, False, r"it carries trajectory, which is made once an unroll"),
        (
            CHAIN,
            Barrier(),
            {("map", "learn"): Barrier(), ("map2", "learn"): BoundedStaleness(2)},
            False,
            "names the edge from 'map2' to 'learn' twice, with barrier every unroll and asynchronous, staleness at",
        ),
        (
            SERVED,
            Barrier(),
            {("act", "environment"): BoundedStaleness(1)},
            False,
            r"environments wait for their actions at every step: use Barrier\('step'\), or leave it out",
        ),
        (
            (ACTOR, Fragment("learner", (REST,))),
            Barrier(),
            {("runners/rollout", "runners/learn"): BoundedStaleness(4)},
            True,
            "'learner' trains groups of which 'hunter' waits at a barrier and 'runners' is asynchronous; one worker",
        ),
        (
            (Fragment("actor", ("environment", "act", "rollout", "hunter/learn")), TEAMS[2]),
            Barrier(),
            {("runners/rollout", "runners/learn"): BoundedStaleness(4)},
            True,
            "'actor' steps environments of all groups and trains hunter, but groups synchronise differently",
        ),
        (
            (
                Fragment("environment", ("environment", "rollout", "hunter/act")),
                Fragment("inference", ("runners/act",)),
                *TEAMS[1:],
            ),
            Barrier(),
            {("runners/rollout", "runners/learn"): BoundedStaleness(4), ("environment", "runners/act"): STEP},
            True,
            "'inference' acts in step for runners, which is asynchronous, while hunter waits at a barrier; it",
        ),
        (
            SERVED_APART,
            BoundedStaleness(4),
            {("environment", "act"): STEP},
            True,
            "fragments hunter-inference and runners-inference act for asynchronous groups in step with the same",
        ),
    ],
)  # fmt: skip
def test_what_cannot_synchronise_is_refused(fragments, synchronisation, edges, teams, message):
    with pytest.raises(UserError, match=message):
        planned(fragments, synchronisation, edges, teams=teams)


def test_priorities_are_not_named():
    from runnel.algorithms.dqn import DQN

    algorithm = DQN(prioritised=True, unroll=4, min_size=16, capacity=64, batch=8)
    fragments = (ACTOR, Fragment("store", ("map", "replay")), Fragment("learner", (REST,)))
    with pytest.raises(UserError, match="priorities follow the batches that they belong to"):
        planned(fragments, Barrier(), {("gradient", "replay"): Barrier()}, algorithm)
