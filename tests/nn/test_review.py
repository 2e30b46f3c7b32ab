"""The evaluation of a whole unroll equals that of its steps, one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.nn import GRU, MLP, ActorCritic, head_for, initial_memory
from runnel.nn.review import review
from runnel.types import Box, Discrete, MultiDiscrete, Trajectory

T, B = 7, 3


def random_unroll(memory, seed=0):
    """Columns of several episodes, half of them ended by truncation; the first one may be well on its way."""
    rng = np.random.default_rng(seed)
    ended = rng.random((T, B)) < 0.4
    truncated = ended & (rng.random((T, B)) < 0.5)
    first = np.concatenate([rng.random((1, B)) < 0.5, ended[:-1]])
    observation, last_observation = rng.normal(size=(2, T, B, 3)).astype(np.float32)
    memory = jax.tree.map(lambda x: rng.normal(size=(B, *x.shape)).astype(np.float32), memory)
    arrays = (observation, (), np.zeros((T, B), np.float32), ended & ~truncated, truncated, last_observation, first)
    return jax.tree.map(jnp.asarray, Trajectory(*arrays, memory, (), (), (), ()))


def step_by_step(actor_critic, trajectory, start):
    """Distributions, values and successors' values of each step, one column after the other."""
    step = jax.jit(lambda observation, memory: actor_critic.step(observation, memory))
    rows = []
    for b in range(B):
        memory = jax.tree.map(lambda x, b=b: x[b], trajectory.memory)
        for t in range(T):
            memory = start if trajectory.first[t, b] else memory
            distribution, value, memory = step(trajectory.observation[t, b], memory)
            rows.append((distribution, value, step(trajectory.last_observation[t, b], memory).value))
    distribution, v_tm1, v_last = jax.tree.map(lambda *x: jnp.stack(x).reshape(B, T, -1).swapaxes(0, 1), *rows)
    v_tm1, v_last = v_tm1[..., 0], v_last[..., 0]
    next_row = jnp.concatenate([v_tm1[1:], v_last[-1:]])
    return distribution, v_tm1, jnp.where(trajectory.truncated, v_last, next_row)


@pytest.mark.parametrize("towers", [True, False])
@pytest.mark.parametrize("gru", [None, GRU(5)], ids=["none", "gru"])
@pytest.mark.parametrize("action", [Discrete(3), MultiDiscrete((2, 3))], ids=lambda space: type(space).__name__)
def test_it_is_what_stepping_would_say(action, gru, towers):
    head, start = head_for(action), initial_memory(gru, towers)
    actor_critic = ActorCritic.create(jax.random.key(0), MLP((8,)), head, jnp.zeros(Box((3,)).shape), gru, towers)
    trajectory = random_unroll(start)
    found = jax.jit(review)(actor_critic, trajectory)
    distribution, v_tm1, v_t = step_by_step(actor_critic, trajectory, start)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found.distribution, distribution)
    np.testing.assert_allclose(found.v_tm1, v_tm1, rtol=1e-4, atol=1e-6)
    valid = ~np.asarray(trajectory.terminated)
    np.testing.assert_allclose(found.v_t[valid], v_t[valid], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("gru", [None, GRU(5)], ids=["none", "gru"])
def test_nothing_is_learnt_through_the_values_of_successors(gru):
    actor_critic = ActorCritic.create(jax.random.key(0), MLP((8,)), head_for(Discrete(3)), jnp.zeros(3), gru)
    trajectory = random_unroll(initial_memory(gru, True))

    def norm(part):
        grads = jax.grad(lambda x: getattr(review(x, trajectory), part).sum())(actor_critic)
        return np.max([jnp.abs(leaf).max() for leaf in jax.tree.leaves(grads)])

    assert norm("v_t") == 0.0
    assert norm("v_tm1") > 0.0
