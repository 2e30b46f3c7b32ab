"""A group learns from another group's trajectory: of the same steps of the same environments, or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from planned import plan
from toys import Drift, Joined, State, Tag

import runnel
from runnel import distributions
from runnel.errors import UserError
from runnel.graph.flow import Flow, trace
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout
from runnel.planning.slacks import limits_in_iterations
from runnel.replay import PrioritisedReplay, UniformReplay
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.stepped import SteppedProgram


@dataclass(frozen=True)
class Looped(Drift):
    """An algorithm with any loop."""

    looped: Callable[[Drift, Flow], None] = lambda algorithm, flow: None

    def loop(self, flow: Flow) -> None:
        self.looped(self, flow)


@dataclass(frozen=True)
class Given(Distribution):
    fragments: tuple[Fragment, ...]

    def layout(self, graph: Any) -> Layout:
        return Layout(self.fragments, BoundedStaleness(8))


def keep(state: Any, *values: Any) -> Any:
    return state, {}


def inputs(graph: Any) -> dict[str, list[str]]:
    return {node.name: [ref.node for ref in node.inputs] for node in graph.after_rollout()}


def test_every_group_takes_the_value_of_the_one_that_is_named() -> None:
    graph = trace(Joined(), Tag.spec, 8)
    assert inputs(graph) == {
        "hunter/learn": ["hunter/rollout", "hunter/rollout"],
        "runners/learn": ["runners/rollout", "hunter/rollout"],
    }
    crossing = [edge for edge in graph.edges if (edge.source, edge.target) == ("hunter/rollout", "runners/learn")]
    assert [edge.type["trajectory"].reward.shape for edge in crossing] == [(4, 8)]


def test_a_part_of_a_value_and_what_a_map_made_of_it_can_be_taken() -> None:
    def loop(algorithm: Drift, flow: Flow) -> None:
        trajectory = flow.rollout(algorithm.act, steps=4)
        near = flow.map(lambda own, other: other.max() - own, trajectory.reward, trajectory.of("runners").reward)
        flow.learn(keep, near.of("hunter"), trajectory)

    assert inputs(trace(Looped(looped=loop), Tag.spec, 8)) == {
        "hunter/map": ["hunter/rollout", "runners/rollout"],
        "runners/map": ["runners/rollout", "runners/rollout"],
        "hunter/learn": ["hunter/map", "hunter/rollout"],
        "runners/learn": ["hunter/map", "runners/rollout"],
    }


def test_what_is_learnt_in_one_process_is_of_the_same_steps() -> None:
    program = SteppedProgram(Loop(trace(Joined(), Tag.spec, 8), Tag()), None, 7)
    for _ in range(3):
        program.run(1, 60, np.inf, lambda: False)
    params = {group: state.params for group, state in program.carry.states.items()}
    assert {group: float(own["apart"]) for group, own in params.items()} == {"hunter": 0, "runners": 0}
    assert params["runners"]["sum"] != 0


def of_one_group(algorithm: Drift, flow: Flow) -> None:
    flow.agents("runners").learn(keep, flow.agents("hunter").rollout(algorithm.act, steps=4))


def of_nobody(algorithm: Drift, flow: Flow) -> None:
    flow.learn(keep, flow.rollout(algorithm.act, steps=4).of("hunters"))


def of_two(algorithm: Drift, flow: Flow) -> None:
    flow.learn(keep, flow.rollout(algorithm.act, steps=4).of("hunter").of("runners"))


def of_no_part(algorithm: Drift, flow: Flow) -> None:
    flow.learn(keep, flow.rollout(algorithm.act, steps=4).of("hunter").rewards)


def inserted(algorithm: Drift, flow: Flow) -> None:
    replay = flow.replay(UniformReplay(256))
    replay.insert(flow.rollout(algorithm.act, steps=4).of("hunter").reward)
    replay.sample(8)


@pytest.mark.parametrize(
    ("looped", "message"),
    [
        (
            of_one_group,
            "a value of group hunter is used by group 'runners'; use values of the same flow.agents(group), or say "
            "whose it is by value.of('hunter')",
        ),
        (
            of_nobody,
            "value.of('hunters'): found a value of group hunter, runners; did you mean 'hunter' or 'runners'?; "
            "expected one of a call that was made for that group",
        ),
        (of_two, "value.of(...).of('runners'): the value is of one group already; leave out one of the two"),
        (of_no_part, "has no 'rewards'"),
        (inserted, "replay.insert of group 'runners': found a value of group 'hunter', expected one of its own"),
    ],
)
def test_what_cannot_be_taken_is_refused(looped: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        trace(Looped(looped=looped), Tag.spec, 8)


def test_batches_and_priorities_of_another_groups_replay_are_refused() -> None:
    def batches(algorithm: Drift, flow: Flow) -> None:
        replay = flow.replay(UniformReplay(256))
        replay.insert(flow.rollout(algorithm.act, steps=4).reward)
        flow.learn(keep, replay.sample(8).of("hunter"))

    def priorities(algorithm: Drift, flow: Flow) -> None:
        replay = flow.replay(PrioritisedReplay(256))
        replay.insert(flow.rollout(algorithm.act, steps=4).reward)
        out = flow.learn(lambda state, batch, key: (state, {"p": jax.numpy.ones(8)}), replay.sample(8))
        replay.update(out["p"].of("hunter"))

    with pytest.raises(UserError, match="a stage of group 'runners' takes 'hunter/replay', found a batch of a replay"):
        trace(Looped(looped=batches), Tag.spec, 8)
    with pytest.raises(UserError, match=r"replay\.update of group 'runners': found a value of group 'hunter'"):
        trace(Looped(looped=priorities), Tag.spec, 8)


def test_groups_that_are_learnt_apart_are_refused() -> None:
    words = (
        r"puts 'runners/learn', which takes a value of group 'hunter', into fragment '{}', and 'hunter/learn' into '{}'"
        "; expected them in one fragment"
    )
    with pytest.raises(UserError, match=words.format("runners", "hunter")):
        plan(distributions.load("environments")(2), Joined(), Tag(), 8)
    actor = Fragment("actor", ("environment", "act"))
    apart = (actor, Fragment("one", ("hunter/learn",)), Fragment("two", (REST,)))
    with pytest.raises(UserError, match=words.format("two", "one")):
        plan(Given(apart), Joined(), Tag(), 8)
    plan(Given((actor, Fragment("both", (REST,)))), Joined(), Tag(), 8)


def test_joined_groups_share_the_lowest_limit() -> None:
    """Also where one of them learns nothing, so that nobody else would wait for its unrolls."""

    def loop(algorithm: Drift, flow: Flow) -> None:
        trajectory = flow.rollout(algorithm.act, steps=4)
        for _ in range(2):
            flow.agents("runners").learn(keep, trajectory, trajectory.of("hunter"))

    graph = trace(Looped(looped=loop), Tag.spec, 8)
    homes = {name: "actor" if graph.nodes[name].kind == "environment" else "learner" for name in graph.nodes}
    assert limits_in_iterations({"hunter": 3, "runners": 3}, homes, graph) == {"hunter": 1, "runners": 1}
    built = plan(distributions.load("async")(2), Joined(tolerates=3), Tag(), 8)
    assert built.limit_iterations == {"hunter": 3, "runners": 3}


def test_a_group_may_learn_from_what_a_frozen_group_did() -> None:
    graph = trace(Joined(), Tag.spec, 8, frozen=["hunter"])
    assert inputs(graph)["runners/learn"] == ["runners/rollout", "hunter/rollout"]
    program = SteppedProgram(Loop(graph, Tag()), None, 7)
    program.run(2, 60, np.inf, lambda: False)
    sums = {group: float(state.params["sum"]) for group, state in program.carry.states.items()}
    assert sums["hunter"] == 0 != sums["runners"]
    assert plan(distributions.load("coarse")(2), Joined(), Tag(), 8).fragment("learner").nodes == (
        "hunter/learn", "runners/learn",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async", "decoupled"])
def test_asynchronous_unrolls_of_both_groups_are_of_the_same_steps(name: str, tmp_path: Any) -> None:
    run = runnel.train(
        Joined(tolerates=4), "toys:Tag", distributions.load(name)(actors=3), envs=12, steps=12 * 4 * 40, seed=1,
        quiet=True, run_dir=tmp_path / "run",
    )  # fmt: skip
    assert run.result["status"] == "finished"
    states: dict[str, State] = run.states
    assert {group: float(state.params["apart"]) for group, state in states.items()} == {"hunter": 0, "runners": 0}
    assert float(states["runners"].params["sum"]) != 0
