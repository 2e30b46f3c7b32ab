"""In what order a fragment's nodes run, what they wait for, and how many batches an iteration has."""

import pytest
from toys import Corridor, Reinforce, Relay

from runnel.algorithms.dqn import DQN
from runnel.graph.flow import trace
from runnel.runtime.programs.schedule import Credit, schedule
from runnel.runtime.programs.stage import Stage, components

ENVS = 8


def replaying(**settings):
    """32 items are inserted in every iteration."""
    return DQN(**{"unroll": 4, "batch": 16, "min_size": 64, "capacity": 512, "hidden": (8,), **settings})


def planned(algorithm, *names):
    graph = trace(algorithm, Corridor.spec, ENVS)
    return schedule(graph, Stage(graph, names or None))


def segments(plan):
    return [(each.receives, [node.name for node in each.nodes]) for each in plan.segments]


def test_what_needs_nothing_from_elsewhere_is_one_segment():
    plan = planned(Reinforce())
    assert segments(plan) == [((), ["learn"])]
    assert plan.cut_components == ()


def test_a_whole_replay_runs_after_what_it_takes_in_as_often_as_it_may():
    plan = planned(replaying())
    assert segments(plan) == [((), ["map", "replay"])]
    (component,) = plan.segments[0].components
    assert component.names == {"replay", "gradient", "apply"}
    assert plan.cut_components == ()


def test_a_replay_apart_from_its_learner_takes_part_in_every_batch():
    (cut,) = planned(replaying(), "map", "replay").cut_components
    assert cut.samples
    assert cut.segments == ()
    assert cut.awaits_priorities == ()


def test_a_replay_of_priorities_waits_for_who_makes_them():
    (cut,) = planned(replaying(prioritised=True), "map", "replay").cut_components
    assert cut.awaits_priorities == ("gradient",)


def test_a_learner_apart_from_the_replay_waits_for_its_batches():
    plan = planned(replaying(), "gradient", "apply")
    (cut,) = plan.cut_components
    assert segments(plan) == []
    assert not cut.samples
    assert segments(cut) == [(("replay",), ["gradient", "apply"])]


def test_a_node_that_waits_begins_a_segment():
    plan = planned(replaying(), "apply")
    assert segments(plan.cut_components[0]) == [(("gradient",), ["apply"])]


def test_what_needs_nothing_from_elsewhere_runs_before_what_waits():
    late = ["map3", "map4", "learn"]
    assert segments(planned(Relay(), "map", *late)) == [((), ["map"]), (("map2",), late)]
    assert segments(planned(Relay(), *late)) == [(("map", "map2"), late)]
    assert segments(planned(Relay(), "map3")) == [(("map", "map2"), ["map3"])]
    assert segments(planned(Relay(), "map", "map2")) == [((), ["map", "map2"])]


def test_a_segment_takes_what_it_does_not_make():
    early, late = planned(Relay(), "map", "map3", "map4", "learn").segments
    assert early.inputs == {"rollout"}
    assert late.inputs == {"rollout", "map", "map2"}
    assert planned(Relay()).segments[0].inputs == {"rollout"}


@pytest.mark.parametrize(
    ("settings", "batches"),
    [
        ({}, [0, 0, 2, 2, 2]),  # the first 64 items are waited for
        ({"min_size": 40}, [0, 1, 2, 2, 2]),  # 24 of the second 32 count, and 8 of them are left over
        ({"samples_per_insert": 0.25}, [0, 0, 0, 1, 0]),
        ({"samples_per_insert": 2.0}, [0, 0, 4, 4, 4]),
    ],
)
def test_batches_are_drawn_from_min_size_on_as_often_as_the_ratio_says(settings, batches):
    """Workers that share a replay with others count so, each by itself."""
    graph = trace(replaying(**{"samples_per_insert": 1.0, **settings}), Corridor.spec, ENVS)
    credit = Credit(*components(graph))
    assert [credit.insert() for _ in batches] == batches
