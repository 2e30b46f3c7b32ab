"""Plays unrolls of tiny problems, one step long or a few, the way the run-time does."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel.types import AgentSpec, Trajectory


def unroll(algorithm, params, spec: AgentSpec, key, steps, columns, reward_of, observation_of=None, ends=None):
    """A trajectory in which only the reward depends on what was done; `ends` are (terminated, truncated) [T, B]."""
    never = np.zeros((steps, columns), bool)
    terminated, truncated = (never, never) if ends is None else ends
    shape = spec.observation.shape
    observe = observation_of or (lambda t, b: np.zeros(shape, np.float32))
    observation = jnp.asarray([[observe(t, b) for b in range(columns)] for t in range(steps + 1)])
    first = np.concatenate([np.ones((1, columns), bool), (terminated | truncated)[:-1]])
    start = jax.tree.map(lambda x: jnp.stack([x] * columns), algorithm.initial_memory(spec))
    memory, acts = start, []
    for t in range(steps):
        memory = jax.tree.map(lambda new, old, t=t: _where(first[t], new, old), start, memory)
        keys = jax.random.split(jax.random.fold_in(key, t), columns)
        act = jax.vmap(lambda o, m, k: algorithm.act(params, o, m, k, True))(observation[t], memory, keys)
        memory = act.memory
        acts.append(act)
    acts = jax.tree.map(lambda *x: jnp.stack(x), *acts)
    numbers = jnp.arange(columns)
    return Trajectory(
        observation[:-1], acts.action, reward_of(acts.action), jnp.asarray(terminated), jnp.asarray(truncated),
        observation[1:] + 1.0, jnp.asarray(first), start, acts.extras, jnp.zeros(columns), 0 * numbers, numbers,
    )  # fmt: skip


def _where(flags, new, old):
    return jnp.where(flags.reshape(-1, *([1] * (old.ndim - 1))), new, old)
