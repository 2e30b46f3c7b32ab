"""Unrolls for tests of actor-critics: rewards and observations that differ, episodes that end in both ways."""

import jax
import jax.numpy as jnp
import numpy as np
from unrolls import unroll

from runnel.types import PER_COLUMN, AgentSpec, Box, Discrete, MultiDiscrete, Trajectory

SEEN = Box((3,))
ACTIONS = [Discrete(3), MultiDiscrete((2, 3)), Box((2,), np.dtype(np.float32), -2.0, 2.0)]
OBSERVATIONS = [
    Box((84, 84, 4), np.dtype(np.uint8), 0, 255),
    Discrete(5),
    {"a": Box((2,)), "b": (Discrete(3), MultiDiscrete((2, 2)))},
]


def kind(space):
    return type(space).__name__


def check_act(graph, observation, memory_size):
    """What acts for these observations chooses one of some actions, and remembers: image networks share one memory."""
    act, trajectory = (graph.nodes[name].output for name in ("act", "rollout"))
    envs, steps = graph.envs, graph.nodes["rollout"].settings.steps
    assert (act.action.shape, act.action.dtype) == ((envs,), jnp.int32)
    image = isinstance(observation, Box) and len(observation.shape) == 3
    assert act.memory.shape == trajectory.memory.shape == (envs, *([] if image else [2]), memory_size)
    seen = jax.tree.map(lambda space: ((steps, envs, *space.shape), space.dtype), observation)
    assert jax.tree.map(lambda rows: (rows.shape, rows.dtype), trajectory.observation) == seen


def random_ends(steps, columns):
    ended = np.random.default_rng(0).random((steps, columns)) < 0.3
    truncated = ended & (np.random.default_rng(1).random((steps, columns)) < 0.5)
    return ended & ~truncated, truncated


def init(algorithm, action, seed=0):
    return algorithm.init(jax.random.key(seed), AgentSpec(SEEN, action))


def play(algorithm, params, action, steps=6, columns=4, ends=None):
    """What `params` do in an unroll that pays whatever they do."""
    reward = jnp.cos(jnp.arange(steps * columns, dtype=jnp.float32)).reshape(steps, columns)

    @jax.jit
    def played(params):
        return unroll(
            algorithm, params, AgentSpec(SEEN, action), jax.random.key(0), steps, columns, lambda _: reward,
            lambda t, b: np.sin(np.arange(3) + 1.7 * t + 0.3 * b).astype(np.float32),
            random_ends(steps, columns) if ends is None else ends,
        )  # fmt: skip

    return played(params)


def drawn(trajectory, action):
    """[T, B, ...] what the policy drew."""
    return trajectory.extras.sample if isinstance(action, Box) else trajectory.action


def rearranged(trajectory, of_steps, of_columns):
    """A trajectory whose `[T, B, ...]` and `[B, ...]` parts went through one function each."""
    parts = trajectory._asdict().items()
    return Trajectory(**{n: jax.tree.map(of_columns if n in PER_COLUMN else of_steps, part) for n, part in parts})


def two_episodes(algorithm, params, cut):
    """The same six steps twice: as two episodes in one column, and as two columns of one episode each."""
    ended, never = np.zeros((6, 1), bool), np.zeros((6, 1), bool)
    ended[2] = True
    one = play(algorithm, params, Discrete(3), 6, 1, (never, ended) if cut else (ended, never))
    two = rearranged(one, lambda x: jnp.stack([x[:3, 0], x[3:, 0]], 1), lambda x: jnp.concatenate([x, x]))
    return one, two


def assert_same(found, wanted, rtol=1e-4, atol=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), found, wanted)
