"""A NAVIX environment as one of Runnel's JAX environments: pure functions of one environment that never reset."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

if importlib.util.find_spec("wandb") is None:
    # NAVIX imports it wherever its agents are, also where nothing is sent to it.
    sys.modules["wandb"] = types.ModuleType("wandb")
    sys.modules["wandb.util"] = types.ModuleType("wandb.util")

import jax
import jax.numpy as jnp
import navix
import numpy as np
from navix import observations
from navix.agents import PPO, ActorCritic, PPOHparams
from navix.environments.environment import Timestep
from navix.rendering.cache import RenderingCache
from navix.states import State

from runnel.environment import TimeStep
from runnel.types import Array, Box, Discrete, EnvSpec, PyTree

__all__ = ["PPO", "ActorCritic", "NavixEnvironment", "PPOHparams", "make"]


NO_CACHE = RenderingCache(np.zeros((0, 1, 1, 3), np.uint8))
"""Of pictures: 80 KB for each environment, which nothing but pictures needs."""


def make(name: str, observation: str = "symbolic_first_person") -> Any:
    """NAVIX's own environment, with flat observations as its networks take them."""
    environment = navix.make(name, observation_fn=getattr(observations, observation))
    space, seen = environment.observation_space, environment.observation_fn
    return environment.replace(
        observation_fn=lambda state: jnp.ravel(seen(state)),
        observation_space=space.replace(shape=(int(np.prod(space.shape)),)),
    )


class NavixEnvironment:
    """`NavixEnvironment("Navix-Empty-Random-5x5-v0")`: its state is what NAVIX leaves to the next step."""

    def __init__(self, name: str, observation: str = "symbolic_first_person"):
        self._environment = make(name, observation)
        timestep = jax.eval_shape(self._reset, jax.random.key(0))
        self._types = jax.tree.map(lambda leaf: leaf.dtype, _kept(timestep.state))
        seen = timestep.observation
        observation_space = Box(seen.shape, np.dtype(seen.dtype), 0, np.iinfo(seen.dtype).max)
        actions = Discrete(len(self._environment.action_set))
        self.spec = EnvSpec.single(f"navix:{name}", observation_space, actions, int(self._environment.max_steps))

    def reset(self, key: Array) -> tuple[PyTree, Array]:
        timestep = self._reset(key)
        return (self._cast(timestep.state), jnp.int32(0)), timestep.observation

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, TimeStep]:
        del key  # NAVIX's state has its own
        kept, time = state
        whole = State(cache=NO_CACHE, **{**kept, "entities": dict(kept["entities"])})  # NAVIX changes the dict
        before = Timestep(t=time, observation=(), action=(), reward=(), step_type=(), state=whole)
        # The half of its `step` that does not reset.
        after = self._environment._step(before, jnp.asarray(action, jnp.int32))
        reward = jnp.asarray(after.reward, jnp.float32)
        ended = after.is_termination(), after.is_truncation()
        return (self._cast(after.state), jnp.int32(after.t)), TimeStep(after.observation, reward, *ended)

    def _reset(self, key: Array) -> Any:
        return self._environment.reset(key, NO_CACHE)

    def _cast(self, state: Any) -> PyTree:
        """Strong types: a weak one would change under a scan."""
        return jax.tree.map(lambda leaf, dtype: jnp.asarray(leaf, dtype), _kept(state), self._types)


def _kept(state: Any) -> dict[str, Any]:
    """What one step leaves to the next. Events are those of a single step, and the cache is for pictures."""
    return {name: getattr(state, name) for name in ("key", "grid", "entities", "mission")}
