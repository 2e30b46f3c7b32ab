"""A Gymnasium VectorEnv as an environment: a function that makes one with `num_envs` environments."""

import gymnasium
from gymnasium.vector import AutoresetMode


def many_carts(num_envs: int, length: int = 200) -> gymnasium.vector.VectorEnv:
    """Carts with poles, in one process each."""
    return gymnasium.make_vec(
        "CartPole-v1",
        num_envs,
        vectorization_mode="async",
        # Plain forks of a process that has threads, as JAX has, may hang.
        vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP, "context": "forkserver"},
        max_episode_steps=length,
    )
