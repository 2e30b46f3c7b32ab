"""A2C: its two nodes, its gradient against one written out, and short trainings; test_learning trains for longer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
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
from unrolls import unroll

import runnel
from runnel.algorithms.a2c import A2C, Gradient
from runnel.distributions.central import Central
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.nn import Network
from runnel.nn.review import review
from runnel.planning.plan import Machine, build_plan
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete

KEY = jax.random.key(0)
SMALL = {"hidden": (8,), "memory_size": 5}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("action", ACTIONS, ids=kind)
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_every_variant_can_be_traced(memory, action, x64):
    with jax.enable_x64(x64):
        graph = trace(A2C(memory=memory, **SMALL), EnvSpec.single("toy", SEEN, action), 8)
        assert list(graph.nodes) == ["environment", "act", "rollout", "gradient", "apply"]
        wanted = jnp.dtype(jnp.float64 if x64 else jnp.float32)
        floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert {x.dtype for x in floats} == {wanted}


@pytest.mark.parametrize("observation", OBSERVATIONS, ids=["image", "discrete", "tree"])
def test_every_kind_of_observation(observation):
    graph = trace(A2C(**SMALL, memory="gru"), EnvSpec.single("toy", observation, Discrete(2)), 8)
    check_act(graph, observation, memory_size=5)


def test_a_users_network_is_used():
    linear = Network(lambda key, x: jnp.ones((3, 6)), lambda params, x: x @ params)
    graph = trace(A2C(network=linear), EnvSpec.single("toy", SEEN, Discrete(2)), 8)
    assert graph.states["agent"].params.actor_critic.trunk.network.shape == (2, 3, 6)  # a tower each


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "tape"}, "memory='tape'.*none or gru or lstm"),
        ({"optimiser": "sgd"}, "optimiser='sgd'.*rmsprop or adam"),
        ({"unroll": 0}, "unroll=0.*1 or more"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0.*above 0"),
        ({"gae_lambda": 1.5}, "gae_lambda=1.5.*0 to 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        A2C(**settings)


def test_under_central_it_is_a3c():
    """Workers that act and compute gradients, and a server that applies them, some of them late."""
    graph = trace(A2C(), Cycle.spec, 8)
    built = build_plan(Central(actors=4), graph, Cycle(), Machine(cpus=8, devices=("cuda:0",)))
    assert {fragment.name: (fragment.replicas, fragment.nodes) for fragment in built.fragments} == {
        "worker": (4, ("environment", "act", "rollout", "gradient")),
        "server": (1, ("apply",)),
    }


def slow_returns(algorithm, trajectory, v_t):
    """[T, B] lambda-returns, from the last step to the first."""
    steps, columns = trajectory.reward.shape
    target = np.zeros((steps, columns))
    for b in range(columns):
        later = float(v_t[-1, b])
        for t in reversed(range(steps)):
            after = float(v_t[t, b])
            if not trajectory.truncated[t, b]:
                after = (1 - algorithm.gae_lambda) * after + algorithm.gae_lambda * later
            after = 0.0 if trajectory.terminated[t, b] else after
            later = target[t, b] = trajectory.reward[t, b] + algorithm.discount * after
    return target.astype(np.float32)


@pytest.mark.parametrize(
    ("memory", "action", "gae_lambda"),
    [*(("none", action, 1.0) for action in ACTIONS), ("gru", ACTIONS[0], 0.8), ("gru", ACTIONS[2], 1.0)],
    ids=["discrete", "multi-discrete", "box", "gru-discrete", "gru-box"],
)
def test_the_gradient_is_that_of_the_present_policy_however_old_the_unroll(memory, action, gae_lambda):
    algorithm = A2C(memory=memory, gae_lambda=gae_lambda, entropy_cost=0.1, **SMALL)
    acted, state = init(algorithm, action, 0), init(algorithm, action, 1)
    trajectory = play(algorithm, acted.params, action)
    sample = drawn(trajectory, action)
    now = review(state.params.actor_critic, trajectory)
    target = slow_returns(algorithm, trajectory, now.v_t)
    advantage = target - now.v_tm1

    def loss(actor_critic):
        distribution, value, _ = review(actor_critic, trajectory)
        policy_loss = -jnp.mean(distribution.log_prob(sample) * advantage)
        return policy_loss + 0.25 * jnp.mean((value - target) ** 2) - 0.1 * jnp.mean(distribution.entropy())

    grads, metrics = jax.jit(algorithm.gradient)(state, trajectory, KEY)
    wanted = jax.jit(jax.grad(loss))(state.params.actor_critic)
    assert_same(grads.actor_critic, wanted)
    norm = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(wanted)))
    np.testing.assert_allclose(metrics.grad_norm, norm, rtol=1e-4)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_order_of_columns_does_not_matter(memory):
    algorithm = A2C(memory=memory, **SMALL)
    state, order = init(algorithm, Discrete(3)), jnp.array([2, 0, 3, 1])
    trajectory = play(algorithm, state.params, Discrete(3))
    moved = rearranged(trajectory, lambda x: x[:, order], lambda x: x[order])
    gradient = jax.jit(algorithm.gradient)
    assert_same(gradient(state, moved, KEY)[0], gradient(state, trajectory, KEY)[0])


@pytest.mark.parametrize("cut", [True, False], ids=["truncated", "terminated"])
@pytest.mark.parametrize("memory", ["none", "gru"])
def test_nothing_passes_from_one_episode_to_the_next(memory, cut):
    algorithm = A2C(memory=memory, gae_lambda=0.9, **SMALL)
    state = init(algorithm, Discrete(3))
    one, two = two_episodes(algorithm, state.params, cut)
    gradient = jax.jit(algorithm.gradient)
    assert_same(gradient(state, one, KEY)[0], gradient(state, two, KEY)[0])


@pytest.mark.parametrize("optimiser", ["rmsprop", "adam"])
def test_a_large_gradient_is_cut_to_the_largest_norm(optimiser):
    algorithm = A2C(optimiser=optimiser, **SMALL)
    state = init(algorithm, Discrete(3))
    large, larger = (
        Gradient(jax.tree.map(lambda x, n=n: jnp.full_like(x, n), state.params.actor_critic), None) for n in (1e2, 1e3)
    )
    after = algorithm.apply(state, large)
    assert_same(after, algorithm.apply(state, larger))
    moved = jax.tree.map(lambda new, old: new - old, after.params, state.params)
    assert all((leaf < 0).all() for leaf in jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("action", "reward_of", "settings"),
    [
        (Discrete(3), lambda a: (a == 1) * 1.0, {}),
        (MultiDiscrete((2, 3)), lambda a: (a[..., 0] == 1) * (a[..., 1] == 2) * 1.0, {}),
        (Box((1,), np.dtype(np.float32), -2.0, 2.0), lambda a: -((a[..., 0] - 1.0) ** 2), {"entropy_cost": 0.0}),
        (Discrete(3), lambda a: (a == 1) * 1.0, {"memory": "gru"}),
    ],
    ids=["discrete", "multi-discrete", "box", "gru"],
)
def test_a_bandit_is_solved(action, reward_of, settings):
    algorithm = A2C(learning_rate=1e-2, optimiser="adam", hidden=(16,), memory_size=16, **settings)
    spec = AgentSpec(Box((1,)), action)
    ends = (np.ones((8, 16), bool), np.zeros((8, 16), bool))
    state = algorithm.init(KEY, spec)
    rewarded = functools.partial(unroll, reward_of=lambda a: reward_of(a).astype(jnp.float32), ends=ends)
    played = jax.jit(functools.partial(rewarded, algorithm, spec=spec, steps=8, columns=16))
    learn = jax.jit(algorithm.learn)
    for update in range(150):
        state, _ = learn(state, played(state.params, key=jax.random.key(update)), KEY)
    best = algorithm.act(state.params, jnp.zeros(1), algorithm.initial_memory(spec), KEY, False).action
    assert reward_of(best) >= (-0.1 if isinstance(action, Box) else 1.0)


def test_evaluation_does_not_explore():
    algorithm = A2C()
    state, keys = init(algorithm, Discrete(5)), jax.random.split(KEY, 32)

    def actions(explore):
        return jax.vmap(lambda key: algorithm.act(state.params, jnp.ones(3), (), key, explore).action)(keys)

    assert len(np.unique(actions(False))) == 1
    assert len(np.unique(actions(True))) > 1


@pytest.mark.parametrize(
    ("environment", "distribution"),
    [
        pytest.param("cycle:Cycle", "fused", marks=pytest.mark.slow),
        pytest.param("cycle:Cycle", "inline", marks=pytest.mark.slow),
        ("cycle:CycleEnv", "inline"),
    ],
)
def test_it_learns_the_value_of_the_uncut_task(environment, distribution, tmp_path):
    algorithm = A2C(discount=DISCOUNT, gae_lambda=0.8, learning_rate=1e-2, optimiser="adam", unroll=6, value_cost=1.0)
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
    algorithm = A2C(memory=memory, **SMALL)
    run = runnel.train(algorithm, environment, distribution, envs=4, steps=640, run_dir=tmp_path / "run", quiet=True)
    assert run.result["status"] == "finished"
    assert run.result["updates"] == 640 // (4 * algorithm.unroll)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.states))
