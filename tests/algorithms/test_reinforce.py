"""REINFORCE: its gradient against one written out, with and without a baseline; test_learning trains for longer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_critics import ACTIONS, SEEN, assert_same, drawn, init, kind, play
from unrolls import unroll

from runnel.algorithms.reinforce import Reinforce
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.nn.review import review
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

KEY = jax.random.key(0)
SMALL = {"hidden": (8,), "memory_size": 5}


@pytest.mark.parametrize("action", ACTIONS, ids=kind)
def test_it_has_the_two_nodes_that_central_cuts_apart(action):
    with jax.enable_x64(True):
        graph = trace(Reinforce(memory="gru", **SMALL), EnvSpec.single("toy", SEEN, action), 8)
    assert list(graph.nodes) == ["environment", "act", "rollout", "gradient", "apply"]
    floats = [x for x in jax.tree.leaves(graph.states) if jnp.issubdtype(x.dtype, jnp.floating)]
    assert {x.dtype for x in floats} == {jnp.dtype(jnp.float64)}


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"unroll=0.*1 or more"):
        Reinforce(unroll=0)


def slow_returns(algorithm, trajectory, v_t):
    """[T, B] discounted rewards to the end of the episode, and whether that was seen."""
    steps, columns = trajectory.reward.shape
    g_t, known = np.zeros((steps, columns), np.float32), np.zeros((steps, columns), bool)
    for b in range(columns):
        later, seen = float(v_t[-1, b]) if algorithm.baseline else 0.0, False
        for t in reversed(range(steps)):
            if trajectory.truncated[t, b]:
                later, seen = float(v_t[t, b]) if algorithm.baseline else 0.0, True
            if trajectory.terminated[t, b]:
                later, seen = 0.0, True
            later = g_t[t, b] = trajectory.reward[t, b] + algorithm.discount * later
            known[t, b] = seen
    return g_t, known


@pytest.mark.parametrize("baseline", [True, False])
def test_what_was_followed_by_more_reward_becomes_more_likely(baseline):
    algorithm, action = Reinforce(baseline=baseline, entropy_cost=0.1, **SMALL), ACTIONS[2]
    state = init(algorithm, action)
    trajectory = play(algorithm, state.params, action)
    now = review(state.params, trajectory)
    g_t, known = slow_returns(algorithm, trajectory, now.v_t)
    assert not known.all()  # some episodes are cut by the unroll's end
    counts = np.ones_like(known) if baseline else known
    compared = g_t - np.asarray(now.v_tm1) if baseline else g_t

    def loss(actor_critic):
        distribution, value, _ = review(actor_critic, trajectory)
        each = -distribution.log_prob(drawn(trajectory, action)) * compared - 0.1 * distribution.entropy()
        value_loss = 0.25 * jnp.mean((value - g_t) ** 2) if baseline else 0.0
        return (each * counts).sum() / counts.sum() + value_loss

    assert_same(jax.jit(algorithm.gradient)(state, trajectory, KEY)[0], jax.jit(jax.grad(loss))(state.params))


@pytest.mark.slow
@pytest.mark.parametrize("baseline", [True, False])
def test_a_bandit_is_solved(baseline):
    algorithm = Reinforce(learning_rate=1e-2, hidden=(16,), baseline=baseline)
    spec, ends = AgentSpec(Box((1,)), Discrete(3)), (np.ones((4, 16), bool), np.zeros((4, 16), bool))
    state = algorithm.init(KEY, spec)
    rewarded = functools.partial(unroll, reward_of=lambda a: (a == 1) * jnp.float32(1), ends=ends)
    played = jax.jit(functools.partial(rewarded, algorithm, spec=spec, steps=4, columns=16))
    learn = jax.jit(algorithm.learn)
    for update in range(150):
        state, _ = learn(state, played(state.params, key=jax.random.key(update)), KEY)
    assert algorithm.act(state.params, jnp.zeros(1), (), KEY, False).action == 1
