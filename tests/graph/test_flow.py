"""Tracing a loop: the graph it gives, and what is refused before anything runs."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, GradientReinforce, Reinforce, Tag

from runnel.algorithm import Algorithm
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay
from runnel.types import Act, Box, Discrete, EnvSpec

CORRIDOR = Corridor.spec
STEPS, ENVS = 8, 4


def edge(graph, source, target, what=None):
    (found,) = (e for e in graph.edges if (e.source, e.target) == (source, target) and what in (None, e.what))
    return found


def test_a_loop_becomes_typed_nodes_and_edges():
    graph = trace(Reinforce(unroll=STEPS), CORRIDOR, ENVS)
    assert list(graph.nodes) == ["environment", "act", "rollout", "learn"]
    assert graph.steps_per_iteration == STEPS * ENVS
    trajectory = edge(graph, "rollout", "learn").type["trajectory"]
    assert trajectory.observation.shape == (STEPS, ENVS, 2)
    assert trajectory.observation.dtype == jnp.float32
    assert trajectory.action.shape == (STEPS, ENVS)
    assert trajectory.action.dtype == jnp.int32
    assert trajectory.version.shape == (ENVS,)


def test_edges_know_their_bytes_per_iteration():
    graph = trace(Reinforce(unroll=STEPS), CORRIDOR, ENVS)
    assert edge(graph, "act", "environment").bytes_per_iteration == STEPS * ENVS * 4
    assert edge(graph, "environment", "act").bytes_per_iteration == STEPS * ENVS * (2 * 4 + 1)  # and `first`
    assert edge(graph, "learn", "act").bytes_per_iteration == (2 * 2 + 2) * 4
    assert edge(graph, "learn", "act").feedback


def test_a_gradient_step_becomes_two_nodes():
    graph = trace(GradientReinforce(unroll=STEPS), CORRIDOR, ENVS)
    assert list(graph.nodes) == ["environment", "act", "rollout", "gradient", "apply"]
    assert edge(graph, "gradient", "apply").bytes_per_iteration == (2 * 2 + 2) * 4
    assert edge(graph, "apply", "act").what == "parameters"


def test_groups_have_their_own_nodes_and_columns():
    @dataclass(frozen=True)
    class Both(Reinforce):
        actions = (Discrete, Box)

        def init(self, key, spec):
            return super().init(key, spec if isinstance(spec.action, Discrete) else CORRIDOR.groups["agent"])

        def act(self, params, observation, memory, key, explore):
            if observation.shape == (3,):
                return super().act(params, observation, memory, key, explore)
            return Act(jnp.zeros(1, jnp.float32))

        def count(self, state, trajectory, key):
            return state, {"reward": trajectory.reward.mean()}

        def loop(self, flow):
            hunter, runners = flow.agents("hunter"), flow.agents("runners")
            hunter.learn(self.learn, hunter.rollout(self.act, 5))
            runners.learn(self.count, runners.rollout(self.act, 5))

    graph = trace(Both(), Tag.spec, ENVS)
    assert graph.columns("hunter") == ENVS
    assert graph.columns("runners") == 2 * ENVS
    assert graph.nodes["runners/rollout"].output.reward.shape == (5, 2 * ENVS)


# Replay in the loop


def items(trajectory):
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (trajectory.observation, trajectory.action))


@dataclass(frozen=True)
class Replayed(Reinforce):
    """Learns from single replayed steps; subclasses change one thing and are refused for it."""

    batch: int = 8
    samples_per_insert: float = 2.0

    def learn(self, state, batch, key):
        return state, Out(jnp.zeros(()), jnp.ones(self.batch))

    def loop(self, flow):
        replay = flow.replay(self.kind())
        replay.insert(flow.map(items, flow.rollout(self.act, STEPS)))
        out = flow.learn(self.learn, replay.sample(self.batch, 16, self.samples_per_insert))
        self.after(replay, out)

    def kind(self):
        return UniformReplay(100)

    def after(self, replay, out):
        pass


class Out(NamedTuple):
    loss: jax.Array
    priorities: jax.Array


def test_what_follows_a_replay_runs_as_often_as_it_may_sample():
    graph = trace(Replayed(), CORRIDOR, ENVS)
    assert graph.nodes["learn"].replays == {"replay"}
    batches = STEPS * ENVS * 2.0 / 8
    observation, action = graph.nodes["replay"].output
    assert observation.shape == (8, 2)
    assert action.shape == (8,)
    assert edge(graph, "replay", "learn").per_iteration == batches
    assert edge(graph, "replay", "learn").bytes_per_iteration == batches * 8 * (2 + 1) * 4


def test_sequences_are_sampled_time_first():
    class Sequences(Replayed):
        def loop(self, flow):
            replay = flow.replay(SequenceReplay(100, 3))
            replay.insert(flow.rollout(self.act, STEPS)[0])
            flow.learn(self.learn, replay.sample(6))

    graph = trace(Sequences(), CORRIDOR, ENVS)
    assert graph.nodes["replay"].output.shape == (3, 6, 2)


def test_priorities_flow_back():
    class Priorities(Replayed):
        def kind(self):
            return PrioritisedReplay(100)

        def after(self, replay, out):
            replay.update(out.priorities)

    graph = trace(Priorities(), CORRIDOR, ENVS)
    assert edge(graph, "learn", "replay", "priorities").feedback
    assert graph.nodes["replay"].output.probability.shape == (8,)


def test_a_map_is_given_what_it_names():
    class Mapped(Reinforce):
        def loop(self, flow):
            def relabel(trajectory, params, key):
                assert set(params) == {"w", "b"}
                return trajectory._replace(reward=jax.random.normal(key, trajectory.reward.shape))

            flow.learn(self.learn, flow.map(relabel, flow.rollout(self.act, STEPS)))

    graph = trace(Mapped(), CORRIDOR, ENVS)
    assert edge(graph, "learn", "map").what == "parameters"


# What is refused. Each message says what was found, what was wanted, and as a rule what to do.


class WrongShape(Reinforce):
    def act(self, params, observation, memory, key, explore):
        return Act(jnp.zeros(3, jnp.int32))


class WrongKind(Reinforce):
    def act(self, params, observation, memory, key, explore):
        return Act(jnp.zeros(()))


class NoAct(Reinforce):
    def act(self, params, observation, memory, key, explore):
        return jnp.int32(0)


class Crashes(Reinforce):
    def act(self, params, observation, memory, key, explore):
        return Act((observation @ jnp.zeros((5, 1)))[0])


class OtherMemory(Reinforce):
    def initial_memory(self, spec):
        return jnp.zeros(3)

    def act(self, params, observation, memory, key, explore):
        return Act(jnp.int32(0), jnp.zeros(4))


class NoMemory(Reinforce):
    def initial_memory(self, spec):
        return jnp.zeros(3)


class NoKey(Reinforce):
    def init(self, spec):
        return super().init(jax.random.key(0), spec)


class NamedActions(Reinforce):
    actions = ("Discrete",)


class OneAction(Reinforce):
    actions = Discrete


class StalenessText(Reinforce):
    max_staleness = "2"


class NoParams(Reinforce):
    def init(self, key, spec):
        return {"w": jnp.zeros(3)}


class GrowingState(Reinforce):
    def learn(self, state, trajectory, key):
        return state._replace(params={**state.params, "b": jnp.zeros(7)}), {}


class OtherPrecision(Reinforce):
    def learn(self, state, trajectory, key):
        return state._replace(params={**state.params, "b": state.params["b"].astype(jnp.float16)}), {}


class OneValue(Reinforce):
    def learn(self, state, trajectory, key):
        return state


class MissingField(Reinforce):
    def loop(self, flow):
        flow.learn(self.learn, flow.rollout(self.act, STEPS).rewards)


class MissingFieldInLearn(Reinforce):
    def learn(self, state, trajectory, key):
        return state, {"loss": trajectory.rewards.mean()}


class NeverLearns(Reinforce):
    def loop(self, flow):
        flow.rollout(self.act, STEPS)


class NeverActs(Reinforce):
    def loop(self, flow):
        pass


class ActsTwice(Reinforce):
    def loop(self, flow):
        flow.learn(self.learn, flow.rollout(self.act, STEPS))
        flow.rollout(self.act, STEPS)


class NoSteps(Reinforce):
    def loop(self, flow):
        flow.learn(self.learn, flow.rollout(self.act, 0))


class NotAValue(Reinforce):
    def loop(self, flow):
        flow.rollout(self.act, STEPS)
        flow.learn(self.learn, jnp.zeros(3))


class NoGroup(Reinforce):
    def loop(self, flow):
        flow.agents("agnet")


class NoLearn(Reinforce):
    learn = Algorithm.learn


class SampleFirst(Replayed):
    def loop(self, flow):
        flow.replay(UniformReplay(100)).sample(8)


class TwoInserts(Replayed):
    def after(self, replay, out):
        replay.insert(out)


class TooSmall(Replayed):
    def kind(self):
        return UniformReplay(4)


class TooMuch(Replayed):
    def kind(self):
        return UniformReplay(20)


class NoPriorities(Replayed):
    def after(self, replay, out):
        replay.update(out.priorities)


class WrongPriorities(NoPriorities):
    def kind(self):
        return PrioritisedReplay(100)

    def learn(self, state, batch, key):
        return state, Out(jnp.zeros(()), jnp.ones(self.batch + 1))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (WrongShape, r"WrongShape.act returns actions int32\[3\], expected int32\[\]"),
        (WrongKind, r"WrongKind.act returns actions float32\[\], expected int32\[\]"),
        (NoAct, r"NoAct.act returns a \w+, expected an Act"),
        (Crashes, r"Crashes.act fails on values of the shapes it would get .*test_flow.py:\d+\)"),
        (OtherMemory, r"OtherMemory.act returns a memory that is float32\[4\]; expected float32\[3\]"),
        (NoMemory, r"NoMemory.act returns a memory of another structure: found \(\), expected float32\[3\]"),
        (NoKey, r"NoKey.init \(.*test_flow.py:\d+\): found init\(spec\), .* write `def init\(self, key, spec\)`"),
        (NamedActions, r"found actions=\('Discrete',\), expected a tuple of classes from `runnel`, .*\(Discrete,\)"),
        (OneAction, r"OneAction: found actions=Discrete, expected a tuple"),
        (StalenessText, r"found max_staleness='2', expected a whole number, 0 or more"),
        (NoParams, r"NoParams.init returns a dict without `params`"),
        (
            GrowingState,
            r"GrowingState.learn returns a state whose .*\['b'\] is float32\[7\]; expected float32\[2\]",
        ),
        (OtherPrecision, r"OtherPrecision.learn .* a state whose .*\['b'\] is float16\[2\]; \w+ float32\[2\]"),
        (OneValue, r"OneValue.learn returns a State, expected two values: return `state, out`"),
        (MissingField, r"'rollout' has no 'rewards'; it has observation, action, reward"),
        (
            MissingFieldInLearn,
            r"MissingFieldInLearn.learn fails .*'Trajectory' object has no attribute 'rewards'",
        ),
        (NeverLearns, r"NeverLearns.loop never calls flow.learn"),
        (NeverActs, r"NeverActs.loop never calls flow.rollout"),
        (ActsTwice, r"flow.rollout is called twice"),
        (NoSteps, r"flow.rollout\(steps=0\); steps must be 1 or more"),
        (NotAValue, r"flow was given a \w+; it takes values that other calls on flow returned"),
        (NoGroup, r"the environment has no group 'agnet'; did you mean 'agent'\?"),
        (NoLearn, r"NoLearn has no `learn`; give it `learn`, or both `gradient` and `apply`"),
        (SampleFirst, r"replay.sample before replay.insert"),
        (TwoInserts, r"a replay takes one insert in a loop"),
        (TooSmall, r"a replay with room for 4 can never hold min_size 16; raise its capacity"),
        (
            TooMuch,
            r"a replay with room for 20 can never hold an iteration's insert of 32; raise its capacity",
        ),
        (NoPriorities, r"replay.update needs a PrioritisedReplay"),
        (WrongPriorities, r"replay.update: found priorities float32\[9\], expected \[8\]"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_refused(cls, message):
    with pytest.raises(UserError, match=message):
        trace(cls(), CORRIDOR, ENVS)


def test_an_action_space_that_does_not_fit():
    reach = EnvSpec.single("reach", Box((2,)), Box((1,)))
    with pytest.raises(UserError, match=r"Reinforce: found Box actions of 'reach', expected Discrete; choose another"):
        trace(Reinforce(), reach, ENVS)


def test_errors_of_users_functions_keep_their_cause():
    with pytest.raises(UserError) as caught:
        trace(Crashes(), CORRIDOR, ENVS)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("x64", [False, True])
def test_types_follow_the_default_float(x64):
    with jax.enable_x64(x64):
        graph = trace(Reinforce(), CORRIDOR, ENVS)
        wanted = np.dtype(np.float64 if x64 else np.float32)
        assert graph.states["agent"].params["w"].dtype == wanted
        assert graph.nodes["rollout"].output.reward.dtype == wanted
        assert graph.nodes["rollout"].output.observation.dtype == np.float32  # what the environment gives
