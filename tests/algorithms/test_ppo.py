"""PPO: types, targets and what one update does; that it learns to act well is in test_learning."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_critics import check_act
from unrolls import unroll

from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.nn import Network
from runnel.nn.review import review
from runnel.ops import minibatches
from runnel.ops import vtrace as ops_vtrace
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete

SEEN = Box((3,))
ACTIONS = [Discrete(3), MultiDiscrete((2, 3)), Box((2,), np.dtype(np.float32), -2.0, 2.0)]
VARIANTS = [
    PPO(unroll=8),
    PPO(unroll=8, memory="gru", memory_size=5),
    PPO(unroll=8, normalise_observations=True, normalise_returns=True, value_clip=0.2, anneal_steps=1000),
]
OTHERS = [
    PPO(unroll=8, memory="lstm", memory_size=5, popart=True),
    PPO(unroll=8, advantages="vtrace", dual_clip=3.0, popart=True, normalise_returns=True),
    PPO(unroll=8, advantages="vtrace", memory="gru", memory_size=5),
]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("action", ACTIONS, ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("algorithm", VARIANTS, ids=["plain", "gru", "normalised"])
def test_every_variant_can_be_traced(algorithm, action, x64):
    """Tracing checks that states and memories keep their types, and that actions fit their space."""
    with jax.enable_x64(x64):
        graph = trace(algorithm, EnvSpec.single("toy", SEEN, action), 8)
        wanted = jnp.dtype(jnp.float64 if x64 else jnp.float32)
        floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert {x.dtype for x in floats} == {wanted}
        assert graph.nodes["learn"].output.policy_loss.shape == ()


@pytest.mark.parametrize(
    "observation",
    [
        Box((84, 84, 4), np.dtype(np.uint8), 0, 255),
        Discrete(5),
        {"a": Box((2,)), "b": (Discrete(3), MultiDiscrete((2, 2)))},
    ],
    ids=["image", "discrete", "tree"],
)
def test_every_kind_of_observation(observation):
    algorithm = PPO(unroll=4, normalise_observations=True, memory="gru", memory_size=5, hidden=(8,))
    check_act(trace(algorithm, EnvSpec.single("toy", observation, Discrete(2)), 8), observation, memory_size=5)


def test_a_users_network_is_used():
    linear = Network(lambda key, x: jnp.ones((3, 6)), lambda params, x: x @ params)
    graph = trace(PPO(network=linear), EnvSpec.single("toy", SEEN, Discrete(2)), 8)
    assert graph.states["agent"].params.actor_critic.trunk.network.shape == (2, 3, 6)  # a tower each


def test_impossible_sizes_are_refused_before_anything_runs():
    toy = EnvSpec.single("toy", SEEN, Discrete(2))
    with pytest.raises(UserError, match="3 minibatches cannot be cut evenly from 16 steps of 8 environments"):
        trace(PPO(unroll=16, minibatches=3), toy, 8)
    with pytest.raises(UserError, match="4 minibatches of whole sequences cannot be cut from 6 environments"):
        trace(PPO(memory="gru"), toy, 6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": "tape"}, "memory='tape'.*none or gru or lstm"),
        ({"dual_clip": 1.0}, "dual_clip=1.0.*above 1"),
        ({"advantages": "td"}, "advantages='td'.*auto or gae or vtrace"),
        ({"activation": "gelu"}, "activation='gelu'.*tanh or relu"),
        ({"epochs": 0}, "epochs=0.*1 or more"),
        ({"minibatches": 0}, "minibatches=0.*1 or more"),
        ({"clip": -0.1}, "clip=-0.1.*above 0"),
        ({"discount": 1.5}, "discount=1.5.*0 to 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        PPO(**settings)


@pytest.mark.parametrize("algorithm", OTHERS, ids=["lstm", "vtrace", "vtrace-gru"])
def test_other_variants_can_be_traced_in_double_precision(algorithm):
    with jax.enable_x64(True):
        graph = trace(algorithm, EnvSpec.single("toy", SEEN, ACTIONS[2]), 8)
        floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
        assert {x.dtype for x in floats} == {jnp.dtype(jnp.float64)}


def noise(t, b):
    return np.sin(np.arange(3) + 1.7 * t + 0.3 * b).astype(np.float32)


def random_ends(steps, columns):
    ended = np.random.default_rng(0).random((steps, columns)) < 0.3
    truncated = ended & (np.random.default_rng(1).random((steps, columns)) < 0.5)
    return ended & ~truncated, truncated


@pytest.mark.parametrize(
    ("algorithm", "action"), list(zip(VARIANTS, ACTIONS, strict=True)), ids=["plain", "gru", "normalised"]
)
def test_learning_sees_what_acting_saw(algorithm, action):
    """Before the first step of the optimiser, probabilities and values are those recorded while acting."""
    algorithm = dataclasses.replace(algorithm, epochs=1, minibatches=1, unroll=6)
    spec = AgentSpec(SEEN, action)
    state = algorithm.init(jax.random.key(0), spec)

    @jax.jit
    def play_and_learn(state, key):
        trajectory = unroll(
            algorithm,
            state.params,
            spec,
            key,
            6,
            4,
            lambda action: jnp.ones(action.shape[:2]),
            noise,
            random_ends(6, 4),
        )
        batch, _ = algorithm.batch(state, trajectory)
        parts = minibatches.cut(batch, 1, sequences=algorithm.memory != "none")
        _, metrics = algorithm.loss(state.params.actor_critic, parts.take(parts.orders(key)[0]))
        return algorithm.learn(state, trajectory, key)[0], batch, metrics

    for seed in range(2):  # the second time with statistics that are not the first ones
        state, batch, metrics = play_and_learn(state, jax.random.key(seed))
        np.testing.assert_allclose(metrics.approx_kl, 0.0, atol=1e-6)
        np.testing.assert_allclose(metrics.clip_fraction, 0.0)
        np.testing.assert_allclose(metrics.policy_loss, 0.0, atol=1e-5)  # the mean of normalised advantages
        np.testing.assert_allclose(
            metrics.value_loss, 0.5 * jnp.mean((batch.extras.value - batch.target) ** 2), rtol=1e-3
        )


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_a_truncated_episode_goes_on_in_value_and_a_terminated_one_does_not(memory):
    algorithm = PPO(memory=memory, discount=0.9, gae_lambda=1.0)
    spec = AgentSpec(SEEN, Discrete(2))
    state = algorithm.init(jax.random.key(0), spec)
    terminated, truncated = np.zeros((3, 2), bool), np.zeros((3, 2), bool)
    terminated[1, 0] = truncated[1, 1] = True
    trajectory = unroll(
        algorithm, state.params, spec, jax.random.key(0), 3, 2, lambda action: jnp.ones(action.shape), noise,
        (terminated, truncated),
    )  # fmt: skip
    target = algorithm.batch(state, trajectory)[0].target
    np.testing.assert_allclose(target[:2, 0], [1.9, 1.0], rtol=1e-5)

    # What the agent would have thought of the true last observation, had its episode gone on.
    def on(b, until):
        remembered = algorithm.initial_memory(spec)
        for t in range(until):
            remembered = state.params.actor_critic.step(trajectory.observation[t, b], remembered).memory
        return state.params.actor_critic.step(trajectory.last_observation[until - 1, b], remembered).value

    np.testing.assert_allclose(target[1, 1], 1 + 0.9 * on(1, 2), rtol=1e-5)
    np.testing.assert_allclose(target[0, 1], 1.9 + 0.81 * on(1, 2), rtol=1e-5)


def test_where_nothing_lags_vtrace_is_gae():
    gae = PPO(gae_lambda=0.9)
    vtrace, spec = dataclasses.replace(gae, advantages="vtrace"), AgentSpec(SEEN, Discrete(3))
    state = gae.init(jax.random.key(0), spec)

    @jax.jit
    def batches(state):
        played = unroll(
            gae, state.params, spec, jax.random.key(0), 6, 4, lambda action: jnp.cos(action), noise, random_ends(6, 4)
        )
        return [algorithm.batch(state, played)[0] for algorithm in (gae, vtrace)]

    wanted, found = batches(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, wanted)


def test_vtrace_uses_the_current_policy_and_tolerates_old_samples():
    algorithm, spec = PPO(advantages="vtrace", normalise_advantages=False), AgentSpec(SEEN, Discrete(3))
    acted, state = (algorithm.init(jax.random.key(seed), spec) for seed in (0, 1))
    played = unroll(
        algorithm, acted.params, spec, jax.random.key(0), 6, 4, lambda action: jnp.cos(action), noise, random_ends(6, 4)
    )
    batch, _ = algorithm.batch(state, played)
    now = review(state.params.actor_critic, played)
    log_prob = now.distribution.log_prob(played.action)
    wanted = ops_vtrace.vtrace(played, now.v_tm1, now.v_t, jnp.exp(log_prob - played.extras.log_prob), 0.99, 0.95)
    found = ops_vtrace.VTrace(batch.target, batch.advantage), batch.extras.log_prob, batch.extras.value
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, (wanted, log_prob, now.v_tm1)
    )
    assert algorithm.max_staleness > PPO(advantages="gae").max_staleness == 0


def test_next_to_nothing_is_learnt_of_what_the_present_policy_would_hardly_do():
    """Also with normalised advantages: their mean must not replace steps without weight."""
    algorithm, spec = PPO(advantages="vtrace"), AgentSpec(SEEN, Discrete(3))
    state = algorithm.init(jax.random.key(0), spec)
    played = unroll(algorithm, state.params, spec, jax.random.key(0), 6, 4, lambda action: 1.0 + jnp.cos(action), noise)
    unlikely = played.extras.log_prob.at[2, 1].set(30.0)  # e^30 times as likely when it was done
    batch, _ = algorithm.batch(state, played._replace(extras=played.extras._replace(log_prob=unlikely)))
    assert jnp.abs(batch.advantage[2, 1]) < 1e-9
    assert (jnp.abs(batch.advantage) > 1e-3).sum() > 20


def test_the_learning_rate_falls_with_environment_steps():
    algorithm = PPO(unroll=4, anneal_steps=64, epochs=1, minibatches=1)
    spec = AgentSpec(SEEN, Discrete(2))
    state = algorithm.init(jax.random.key(0), spec)
    trajectory = unroll(algorithm, state.params, spec, jax.random.key(0), 4, 8, lambda action: jnp.ones(action.shape))
    learn, rates = jax.jit(algorithm.learn), []
    for _ in range(4):
        before = state.params.actor_critic
        state, metrics = learn(state, trajectory, jax.random.key(0))
        rates.append(float(metrics.learning_rate) / algorithm.learning_rate)
    np.testing.assert_allclose(rates, [1.0, 0.5, 0.0, 0.0], atol=1e-6)
    np.testing.assert_array_equal(jax.tree.leaves(before)[0], jax.tree.leaves(state.params.actor_critic)[0])


def test_statistics_change_once_per_update():
    algorithm = PPO(unroll=4, normalise_observations=True, normalise_returns=True, epochs=3, minibatches=2)
    spec = AgentSpec(SEEN, Discrete(2))
    state = algorithm.init(jax.random.key(0), spec)
    trajectory = unroll(
        algorithm, state.params, spec, jax.random.key(0), 4, 8, lambda action: jnp.ones(action.shape), noise
    )
    state, _ = jax.jit(algorithm.learn)(state, trajectory, jax.random.key(0))
    (observations,) = state.params.observations
    np.testing.assert_allclose(observations.count, 32, rtol=1e-4)
    np.testing.assert_allclose(observations.mean, trajectory.observation.mean((0, 1)), atol=1e-4)
    np.testing.assert_allclose(state.returns.count, 32, rtol=1e-4)


@pytest.mark.parametrize(
    ("action", "reward_of", "settings"),
    [
        (Discrete(3), lambda a: (a == 1) * 1.0, {}),
        (MultiDiscrete((2, 3)), lambda a: (a[..., 0] == 1) * (a[..., 1] == 2) * 1.0, {}),
        (Box((1,), np.dtype(np.float32), -2.0, 2.0), lambda a: -((a[..., 0] - 1.0) ** 2), {}),
        (Discrete(3), lambda a: (a == 1) * 1.0, {"memory": "gru"}),
        (Discrete(3), lambda a: (a == 1) * 100.0, {"normalise_returns": True, "value_clip": 0.2}),
    ],
    ids=["discrete", "multi-discrete", "box", "gru", "normalised"],
)
def test_a_bandit_is_solved(action, reward_of, settings):
    algorithm = PPO(learning_rate=1e-2, unroll=8, hidden=(16,), memory_size=16, **settings)
    spec = AgentSpec(Box((1,)), action)
    ends = (np.ones((8, 16), bool), np.zeros((8, 16), bool))
    state = algorithm.init(jax.random.key(0), spec)
    rewarded = functools.partial(unroll, reward_of=lambda a: reward_of(a).astype(jnp.float32), ends=ends)
    play = jax.jit(functools.partial(rewarded, algorithm, spec=spec, steps=8, columns=16))
    learn = jax.jit(algorithm.learn)
    for update in range(30):
        state, _ = learn(state, play(state.params, key=jax.random.key(update)), jax.random.key(update))
    best = algorithm.act(state.params, jnp.zeros(1), algorithm.initial_memory(spec), jax.random.key(0), False).action
    assert reward_of(best) >= (-0.1 if isinstance(action, Box) else 1.0)


def test_evaluation_does_not_explore():
    algorithm, spec = PPO(), AgentSpec(SEEN, Discrete(5))
    state = algorithm.init(jax.random.key(0), spec)
    keys = jax.random.split(jax.random.key(1), 32)

    def actions(explore):
        return jax.vmap(lambda key: algorithm.act(state.params, jnp.ones(3), (), key, explore).action)(keys)

    greedy, drawn = actions(False), actions(True)
    assert len(np.unique(greedy)) == 1
    assert len(np.unique(drawn)) > 1
