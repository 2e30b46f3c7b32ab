"""NaN and infinity never enter a learner's state, and the first quantity that was not finite is named."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, GradientReinforce, Reinforce, State

from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.envs.stepped import Stepped
from runnel.graph.flow import trace
from runnel.runtime.programs import finite, totals
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.compiled import CompiledProgram
from runnel.runtime.single_process.stepped import SteppedProgram

ENVS = 4


@dataclass
class BadCorridor(Corridor):
    """The corridor, where step `at` of each episode shows or pays something that is no number."""

    at: int = 3
    reward: float = 0.0
    observation: float = 0.0

    def step(self, state, action, key):
        clock = state[1]
        state, step = super().step(state, action, key)
        bad = lambda value, extra: jnp.where(clock == self.at, value + extra, value)  # noqa: E731
        return state, step._replace(
            observation=bad(step.observation, self.observation), reward=bad(step.reward, self.reward)
        )


@dataclass(frozen=True)
class Breaks(Reinforce):
    """Update number `at`, counted from 0, gives something that is not finite."""

    at: int = 3
    what: str = "loss"

    def learn(self, state, trajectory, key):
        new, out = super().learn(state, trajectory, key)
        zero = jnp.where(trajectory.version[0] == self.at, 0.0, 1.0)
        out = {"loss": {"entropy": jnp.float32(1), "policy": out["loss"]}, "each": jnp.zeros(3), "count": 7}
        params = dict(new.params)
        if self.what == "loss":
            out["loss"]["policy"] = (out["loss"]["policy"] + 1) / zero
        elif self.what == "state":
            params["w"] = params["w"].at[0, 0].set(1 / zero)
        elif self.what == "both":
            out["loss"]["policy"], params["b"] = 1 / zero, params["b"] / zero
        elif self.what == "each":  # for other nodes: it changes nothing here
            out["each"] = out["each"] / zero
        return State(params, new.optimiser), out


@dataclass(frozen=True)
class BreaksInHalves(GradientReinforce):
    """The same, in `gradient` and `apply`."""

    at: int = 3
    what: str = "loss"

    def gradient(self, state, trajectory, key):
        grads, out = super().gradient(state, trajectory, key)
        zero = jnp.where(trajectory.version[0] == self.at, 0.0, 1.0)
        if self.what == "loss":
            out = {"loss": (out["loss"] + 1) / zero}
        elif self.what == "gradient":
            grads = {**grads, "b": 1 / zero + 0 * grads["b"]}
        elif self.what == "state":
            grads = {**grads, "b": grads["b"] + jnp.where(zero == 0, 1e30, 0.0)}
        return grads, out

    def apply(self, state, grads):
        new = super().apply(state, grads)
        huge = jnp.where(grads["b"] > 1e29, 1e38, 1.0).astype(new.params["b"].dtype)
        return State({**new.params, "b": new.params["b"] * huge * huge}, new.optimiser)


def make(way, algorithm, environment=None, envs=ENVS):
    environment = environment or Corridor()
    graph = trace(algorithm, environment.spec, envs)
    if way == "compiled":
        return CompiledProgram(Loop(graph, environment), jax.devices()[:1], 0)
    if way == "unrolled":
        return SteppedProgram(Loop(graph, environment), None, 0)
    return SteppedProgram(Loop(graph), Stepped(environment).open(range(envs), 0), 0)


def run(program, iterations):
    """A session that skips refused updates: all its reports, in order."""
    told = []
    while sum(each.iterations for each in told) < iterations:
        if isinstance(program, CompiledProgram):
            program.iterations_per_call = iterations
        left = iterations - sum(each.iterations for each in told)
        told.append(program.run(left, 60, np.inf, lambda: False))
    return told


def broken(told):
    names = {}
    for progress in told:
        for name, times in progress.broken.items():
            names[name] = names.get(name, 0) + times
    return names


def state_of(program):
    return [np.array(leaf) for leaf in jax.tree.leaves(program.carry.states)]


def assert_finite(program):
    assert all(np.isfinite(leaf).all() for leaf in state_of(program))


def same(a, b):
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("way", "algorithm", "name"),
    [
        ("compiled", Breaks(what="loss"), "breaks's learn: loss/policy"),
        ("compiled", Breaks(what="state"), "breaks's learn: params/w"),
        ("compiled", Breaks(what="both"), "breaks's learn: loss/policy"),
        ("compiled", BreaksInHalves(what="loss"), "breaksinhalves's gradient: loss"),
        ("compiled", BreaksInHalves(what="gradient"), "breaksinhalves's gradient: gradients/b"),
        ("compiled", BreaksInHalves(what="state"), "breaksinhalves's apply: params/b"),
        ("unrolled", Breaks(what="loss"), "breaks's learn: loss/policy"),
        ("stepped", BreaksInHalves(what="gradient"), "breaksinhalves's gradient: gradients/b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_update_is_refused_named_and_reported_at_once(way, algorithm, name):
    program = make(way, algorithm)
    run(program, 3)
    before = state_of(program)
    if isinstance(program, CompiledProgram):
        program.iterations_per_call = 10
    progress = program.run(10, 60, np.inf, lambda: False)
    assert (progress.iterations, progress.updates, progress.broken) == (1, 1, {name: 1})
    assert same(state_of(program), before)
    # and after it everything goes on
    told = run(program, 3)
    assert sum(each.updates for each in told) == 3
    assert broken(told) == {}
    assert all(np.isfinite(value) for each in told for value in each.out.values())
    assert_finite(program)
    assert not same(state_of(program), before)


def test_what_is_only_for_other_nodes_is_no_reason():
    program = make("compiled", Breaks(what="each"))
    assert broken(run(program, 5)) == {}


ALGORITHMS = {
    "learn": (Reinforce(), "reinforce's learn: trajectory.reward"),
    "PPO": (
        PPO(unroll=8, epochs=1, minibatches=1, hidden=(8,), normalise_returns=True, normalise_observations=True),
        "ppo's learn: trajectory.reward",
    ),
    "gradient": (A2C(hidden=(8,)), "a2c's gradient: trajectory.reward"),
    "replay": (
        DQN(unroll=4, batch=8, min_size=16, capacity=64, samples_per_insert=1.0, hidden=(8,)),
        "dqn's gradient: batch.r_t",
    ),
    "prioritised replay": (
        DQN(unroll=4, batch=8, min_size=16, capacity=64, samples_per_insert=1.0, hidden=(8,), prioritised=True),
        "dqn's gradient: batch.items.r_t",
    ),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "compiled") for kind in ("PPO", "prioritised replay")),
        *(pytest.param(kind, "compiled", marks=pytest.mark.slow) for kind in ("learn", "gradient", "replay")),
        ("learn", "stepped"),
        ("replay", "stepped"),
    ],
)
def test_a_reward_that_is_no_number_is_named_as_the_cause(kind, way):
    algorithm, name = ALGORITHMS[kind]
    program = make(way, algorithm, BadCorridor(at=9, reward=np.nan))
    told = run(program, 12)
    assert set(broken(told)) == {name}
    assert sum(each.updates for each in told) > broken(told)[name]  # others were made
    assert_finite(program)
    assert np.isfinite(told[-1].mean_return)
    assert all(np.isfinite(value) for each in told for value in each.out.values())
    for buffer in program.carry.replays.values():  # the sums that items are drawn by
        tree = getattr(buffer.items, "sum_tree_state", None)
        assert tree is None or np.isfinite(tree.nodes).all()


@dataclass(frozen=True)
class Forgiving(Reinforce):
    """Takes infinity for a large number."""

    def _logits(self, params, observation):
        return super()._logits(params, jnp.clip(observation, -1, 1))


def test_what_was_seen_is_no_reason_where_nothing_comes_of_it():
    program = make("compiled", Forgiving(), BadCorridor(observation=np.inf))
    assert broken(run(program, 6)) == {}
    bad = make("compiled", Reinforce(), BadCorridor(observation=np.inf))
    assert set(broken(run(bad, 6))) == {"reinforce's learn: trajectory.observation"}


@dataclass(frozen=True)
class Extremes(Reinforce):
    """Keeps the lowest reward of each of two kinds, the second of which never occurs."""

    def init(self, key, spec):
        state = super().init(key, spec)
        return State({**state.params, "least": jnp.full(2, jnp.inf)}, state.optimiser)

    def learn(self, state, trajectory, key):
        weights = {name: state.params[name] for name in "wb"}
        new, out = super().learn(State(weights, state.optimiser), trajectory, key)
        least = state.params["least"].at[0].min(trajectory.reward.min())
        return State({**new.params, "least": least}, new.optimiser), out


def test_a_state_may_begin_with_infinity():
    program = make("compiled", Extremes())
    assert broken(run(program, 4)) == {}
    assert np.asarray(program.carry.states["agent"].params["least"]).tolist() == [pytest.approx(-0.01), np.inf]


@dataclass(frozen=True)
class WithKey(Reinforce):
    """Its state holds a random key and a count."""

    def init(self, key, spec):
        state = super().init(key, spec)
        return State({**state.params, "key": key, "count": 0}, state.optimiser)

    def learn(self, state, trajectory, key):
        weights = {name: state.params[name] for name in "wb"}
        new, out = super().learn(State(weights, state.optimiser), trajectory, key)
        count = state.params["count"] + 1
        out["loss"] = out["loss"] / jnp.where(trajectory.version[0] == 2, 0, 1)
        key = jax.random.split(state.params["key"])[0]
        return State({**new.params, "key": key, "count": count}, new.optimiser), out


def test_a_state_may_hold_keys_and_counts():
    program = make("compiled", WithKey())
    assert set(broken(run(program, 5))) == {"withkey's learn: loss"}
    assert int(program.carry.states["agent"].params["count"]) == 4


def test_sums_of_workers_add_up():
    program = make("unrolled", Breaks(at=1, what="loss"))
    one = jax.jit(lambda carry: program.stage.iterate(*program.loop.unroll(carry))[1])(program.carry)
    tally = finite.NonFiniteCounts(np.array([0, 2]), ("a", "b"))
    odd = one._replace(broken={"learn": tally, "other": tally})
    assert totals.summed(jax.device_get([one, odd, odd])).broken == {"b": 8}
