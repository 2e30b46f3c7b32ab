"""An environment whose observation is its clock, and an algorithm that counts which steps it has learnt from."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import Algorithm
from runnel.environment import TimeStep
from runnel.types import Act, Array, Box, Discrete, EnvSpec

STEPS = 50_000
ENVS = 4


class Clocked:
    """One episode that never ends: the observation is the number of steps taken."""

    spec = EnvSpec.single("clocked", Box((1,), np.dtype(np.float32), 0.0, float(STEPS)), Discrete(2))

    def reset(self, key):
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state, action, key):
        state = state + 1
        return state, TimeStep(state[None].astype(jnp.float32), jnp.zeros(()), jnp.bool_(False), jnp.bool_(False))


class State(NamedTuple):
    params: dict[str, Array]
    seen: Array  # [ENVS, STEPS] how often a step of an environment was learnt from


@dataclass(frozen=True)
class Counting(Algorithm):
    """Learns nothing but which steps it has learnt from. An update takes long, so that actors are ahead."""

    unroll: int = 2
    max_staleness = 4
    work: int = 1_000_000

    def init(self, key, spec):
        return State({"x": jnp.zeros(())}, jnp.zeros((ENVS, STEPS), jnp.int32))

    def act(self, params, observation, memory, key, explore):
        return Act(jnp.int32(0))

    def learn(self, state, trajectory, key):
        clock = trajectory.observation[..., 0].astype(jnp.int32)  # [T, B]
        seen = state.seen.at[jnp.broadcast_to(trajectory.index, clock.shape), clock].add(1)
        slow = jax.lax.fori_loop(0, self.work, lambda i, x: jnp.sin(x + 1e-3 * i), state.params["x"])
        return State({"x": slow}, seen), {}

    def loop(self, flow):
        flow.learn(self.learn, flow.rollout(self.act, steps=self.unroll))
