"""IMPALA: V-trace against a plain recursion, its gradient, and short trainings; test_learning trains for longer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from actor_critics import (
    ACTIONS,
    OBSERVATIONS,
    SEEN,
    assert_same,
    check_act,
    drawn,
    init,
    kind,
    play,
    rearranged,
    two_episodes,
)
from cycle import DISCOUNT, VALUES, Cycle
from hypothesis import given, settings
from hypothesis import strategies as st
from unrolls import unroll

import runnel
from runnel.algorithms.a2c import A2C
from runnel.algorithms.impala import IMPALA
from runnel.distributions.asynchronous import Async
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.nn.review import review
from runnel.ops import returns
from runnel.ops.vtrace import vtrace
from runnel.planning.plan import Machine, build_plan
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, Trajectory

KEY = jax.random.key(0)
SMALL = {"hidden": (8,), "memory_size": 5}
STEPS, COLUMNS = 9, 4


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("action", ACTIONS, ids=kind)
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_every_variant_can_be_traced(memory, action, x64):
    with jax.enable_x64(x64):
        graph = trace(IMPALA(memory=memory, **SMALL), EnvSpec.single("toy", SEEN, action), 8)
        assert list(graph.nodes) == ["environment", "act", "rollout", "gradient", "apply"]
        wanted = jnp.dtype(jnp.float64 if x64 else jnp.float32)
        floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert {x.dtype for x in floats} == {wanted}


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=["image", "discrete", "tree"])
def test_every_kind_of_observation(observation):
    graph = trace(IMPALA(**SMALL, memory="gru"), EnvSpec.single("toy", observation, Discrete(2)), 8)
    check_act(graph, observation, memory_size=5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "tape"}, "memory='tape'.*none or gru or lstm"),
        ({"optimiser": "sgd"}, "optimiser='sgd'.*rmsprop or adam"),
        ({"clip_rho": 0.0}, "clip_rho=0.0.*above 0"),
        ({"clip_c": -1.0}, "clip_c=-1.0.*above 0"),
        ({"trace_lambda": 1.5}, "trace_lambda=1.5.*0 to 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        IMPALA(**settings)


def test_under_async_actors_run_free_and_lag_by_so_much():
    graph = trace(IMPALA(), Cycle.spec, 8)
    built = build_plan(Async(actors=4), graph, Cycle(), Machine(cpus=8, devices=("cuda:0",)))
    assert {fragment.name: fragment.replicas for fragment in built.fragments} == {"actor": 4, "learner": 1}
    assert str(IMPALA.max_staleness) in built.text()


def random_unroll(seed, ends, spread):
    """Rewards, ends, values and ratios of probabilities; where nothing ended, a successor is the next row."""
    rng = np.random.default_rng(seed)
    shape = (STEPS, COLUMNS)
    ended = rng.random(shape) < ends
    truncated = ended & (rng.random(shape) < 0.5)
    reward, v_tm1, v_t = rng.normal(size=(3, *shape)).astype(np.float32)
    v_t[:-1] = np.where(ended[:-1], v_t[:-1], v_tm1[1:])
    rho = np.exp(spread * rng.normal(size=shape)).astype(np.float32)
    trajectory = Trajectory((), (), reward, ended & ~truncated, truncated, (), (), (), (), (), (), ())
    return jax.tree.map(jnp.asarray, (trajectory, v_tm1, v_t, rho))


def targets_of(algorithm, trajectory, v_tm1, v_t, rho):
    settings = algorithm.discount, algorithm.trace_lambda, algorithm.clip_rho, algorithm.clip_c
    return vtrace(trajectory, v_tm1, v_t, rho, *settings)


def slow_vtrace(algorithm, trajectory, v_tm1, v_t, rho):
    """V-trace as the paper's appendix says it: v_s = V(x_s) + delta_s + gamma c_s (v_s+1 - V(x_s+1))."""
    target, advantage = np.zeros((2, STEPS, COLUMNS))
    for b in range(COLUMNS):
        for t in reversed(range(STEPS)):
            discount = 0.0 if trajectory.terminated[t, b] else algorithm.discount
            ends_here = trajectory.terminated[t, b] or trajectory.truncated[t, b] or t == STEPS - 1
            beyond = 0.0 if ends_here else algorithm.trace_lambda * (target[t + 1, b] - v_tm1[t + 1, b])
            weight, c = min(algorithm.clip_rho, rho[t, b]), min(algorithm.clip_c, rho[t, b])
            td_error = trajectory.reward[t, b] + discount * v_t[t, b] - v_tm1[t, b]
            target[t, b] = v_tm1[t, b] + weight * td_error + discount * c * beyond
            advantage[t, b] = weight * (td_error + discount * beyond)
    return target, advantage


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    ends=st.sampled_from([0.0, 0.3, 1.0]),
    clips=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (100.0, 100.0)]),
    trace_lambda=st.sampled_from([0.0, 0.9, 1.0]),
)
def test_vtrace_is_that_of_the_paper(seed, ends, clips, trace_lambda):
    algorithm = IMPALA(discount=0.9, clip_rho=clips[0], clip_c=clips[1], trace_lambda=trace_lambda)
    unrolled = random_unroll(seed, ends, 0.7)
    assert_same(tuple(targets_of(algorithm, *unrolled)), slow_vtrace(algorithm, *unrolled), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("trace_lambda", [1.0, 0.8])
def test_where_nothing_was_truncated_vtrace_is_that_of_rlax(trace_lambda):
    algorithm = IMPALA(discount=0.9, clip_rho=1.5, trace_lambda=trace_lambda)
    trajectory, v_tm1, v_t, rho = random_unroll(0, 0.0, 0.7)
    trajectory = trajectory._replace(terminated=trajectory.terminated.at[3, 1].set(True))
    discount_t = jnp.where(trajectory.terminated, 0.0, 0.9)
    wanted = jax.vmap(
        lambda *x: rlax.vtrace_td_error_and_advantage(*x, trace_lambda, 1.5, 1.5),
        1, 1,
    )(v_tm1, v_t, trajectory.reward, discount_t, rho)  # fmt: skip
    found = targets_of(algorithm, trajectory, v_tm1, v_t, rho)
    assert_same((found.target - v_tm1, found.advantage), (wanted.errors, wanted.pg_advantage))


@pytest.mark.parametrize("trace_lambda", [1.0, 0.8])
def test_where_nothing_lags_targets_are_plain_lambda_returns(trace_lambda):
    algorithm = IMPALA(discount=0.9, trace_lambda=trace_lambda)
    trajectory, v_tm1, v_t, rho = random_unroll(1, 0.3, 0.0)
    ends = trajectory.terminated, trajectory.truncated
    wanted = returns.advantages(trajectory.reward, *ends, v_tm1, v_t, 0.9, trace_lambda)
    found = targets_of(algorithm, trajectory, v_tm1, v_t, rho)
    assert_same((found.advantage, found.target), tuple(wanted))


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "terminated"])
def test_what_follows_an_episode_does_not_reach_into_it(cut):
    trajectory, v_tm1, v_t, rho = random_unroll(2, 0.0, 0.7)
    ended = jnp.zeros_like(trajectory.truncated).at[4].set(True)
    trajectory = trajectory._replace(**{"truncated" if cut else "terminated": ended})
    later = (jnp.arange(STEPS) > 4)[:, None]

    def targets(change):
        changed = trajectory._replace(reward=trajectory.reward + change * later)
        return targets_of(IMPALA(), changed, v_tm1 + change * later, v_t + change * later, rho * (1 + change * later))

    for part, changed in zip(targets(0.0), targets(3.0), strict=True):
        np.testing.assert_array_equal(part[:5], changed[:5])
        assert (part[5:] != changed[5:]).all()


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_where_nothing_lags_the_gradient_is_that_of_a2c(memory):
    impala, a2c = IMPALA(memory=memory, **SMALL), A2C(memory=memory, **SMALL)
    state = init(impala, Discrete(3))
    trajectory = play(impala, state.params, Discrete(3))
    grads, metrics = jax.jit(impala.gradient)(state, trajectory, KEY)
    np.testing.assert_allclose(metrics.mean_ratio, 1.0, rtol=1e-5)
    wanted = jax.jit(a2c.gradient)(state, trajectory, KEY)[0].actor_critic
    assert_same(grads.actor_critic, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("memory", "action"), [*(("none", action) for action in ACTIONS), ("gru", ACTIONS[2])],
    ids=["discrete", "multi-discrete", "box", "gru-box"],
)  # fmt: skip
def test_the_gradient_is_weighted_by_how_likely_the_present_policy_is_to_act_so(memory, action):
    algorithm = IMPALA(memory=memory, clip_rho=1.2, clip_c=0.9, trace_lambda=0.9, entropy_cost=0.1, **SMALL)
    acted = init(algorithm, action, 0)
    # Policies begin near uniform, so one that lags is made by scaling up what it says.
    state = jax.tree.map(lambda x: 3.0 * x, init(algorithm, action, 1))
    trajectory = play(algorithm, acted.params, action, STEPS, COLUMNS)
    sample = drawn(trajectory, action)
    now = review(state.params.actor_critic, trajectory)
    ratio = np.exp(now.distribution.log_prob(sample) - trajectory.extras.log_prob)
    target, advantage = slow_vtrace(algorithm, trajectory, now.v_tm1, now.v_t, ratio)
    target, advantage = target.astype(np.float32), advantage.astype(np.float32)

    def loss(actor_critic):
        distribution, value, _ = review(actor_critic, trajectory)
        policy_loss = -jnp.mean(distribution.log_prob(sample) * advantage)
        return policy_loss + 0.25 * jnp.mean((value - target) ** 2) - 0.1 * jnp.mean(distribution.entropy())

    grads, metrics = jax.jit(algorithm.gradient)(state, trajectory, KEY)
    assert np.std(ratio) > 0.01
    np.testing.assert_allclose(metrics.mean_ratio, ratio.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics.clip_fraction, (ratio > 1.2).mean(), rtol=1e-4)
    assert_same(grads.actor_critic, jax.jit(jax.grad(loss))(state.params.actor_critic), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_order_of_columns_does_not_matter(memory):
    algorithm = IMPALA(memory=memory, **SMALL)
    state, order = init(algorithm, Discrete(3), 1), jnp.array([2, 0, 3, 1])
    trajectory = play(algorithm, init(algorithm, Discrete(3), 0).params, Discrete(3))
    moved = rearranged(trajectory, lambda x: x[:, order], lambda x: x[order])
    gradient = jax.jit(algorithm.gradient)
    assert_same(gradient(state, moved, KEY)[0], gradient(state, trajectory, KEY)[0])


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "terminated"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_nothing_passes_from_one_episode_to_the_next(memory, cut):
    """Neither rewards nor memory, by a policy that is not the one that acted."""
    algorithm = IMPALA(memory=memory, trace_lambda=0.9, **SMALL)
    one, two = two_episodes(algorithm, init(algorithm, Discrete(3), 0).params, cut)
    state = init(algorithm, Discrete(3), 1)
    gradient = jax.jit(algorithm.gradient)
    assert_same(gradient(state, one, KEY)[0], gradient(state, two, KEY)[0])


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_bandit_is_solved_by_actors_that_lag(memory):
    algorithm = IMPALA(learning_rate=1e-2, optimiser="adam", hidden=(16,), memory_size=16, memory=memory)
    spec = AgentSpec(Box((1,)), Discrete(3))
    ends = (np.ones((8, 16), bool), np.zeros((8, 16), bool))
    state = algorithm.init(KEY, spec)
    rewarded = functools.partial(unroll, reward_of=lambda a: (a == 1) * jnp.float32(1), ends=ends)
    played = jax.jit(functools.partial(rewarded, algorithm, spec=spec, steps=8, columns=16))
    learn, lag = jax.jit(algorithm.learn), [state.params] * 5
    for update in range(150):
        state, _ = learn(state, played(lag[0], key=jax.random.key(update)), KEY)
        lag = [*lag[1:], state.params]
    best = algorithm.act(state.params, jnp.zeros(1), algorithm.initial_memory(spec), KEY, False).action
    assert best == 1


@pytest.mark.parametrize(
    ("environment", "distribution"),
    [
        pytest.param("cycle:Cycle", "fused", marks=pytest.mark.slow),
        pytest.param("cycle:Cycle", "inline", marks=pytest.mark.slow),
        ("cycle:CycleEnv", "inline"),
    ],
)
def test_it_learns_the_value_of_the_uncut_task(environment, distribution, tmp_path):
    algorithm = IMPALA(
        discount=DISCOUNT, trace_lambda=0.8, learning_rate=1e-2, optimiser="adam", unroll=6, value_cost=1.0
    )
    run = runnel.train(
        algorithm, environment, distribution, envs=8, steps=6 * 8 * 400, run_dir=tmp_path / "run", quiet=True
    )
    values = jax.vmap(lambda o: run.params.actor_critic.step(o, ()).value)(np.eye(3, dtype=np.float32))
    np.testing.assert_allclose(values, VALUES, rtol=0.03)


@pytest.mark.parametrize("memory", ["none", pytest.param("gru", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("environment", "distribution"),
    [pytest.param("CartPole-v1", "inline", marks=pytest.mark.slow), ("gymnax:CartPole-v1", "fused")],
)
def test_it_trains(environment, distribution, memory, tmp_path):
    if environment.startswith("gymnax:"):
        pytest.importorskip("gymnax")
    algorithm = IMPALA(memory=memory, **SMALL)
    run = runnel.train(algorithm, environment, distribution, envs=4, steps=800, run_dir=tmp_path / "run", quiet=True)
    assert run.result["status"] == "finished"
    assert run.result["updates"] == 800 // (4 * algorithm.unroll)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.states))
