"""An algorithm whose actions show what it remembers, and an environment that rewards it for that."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from runnel.algorithm import Algorithm
from runnel.environment import TimeStep
from runnel.types import Act, Box, Discrete, EnvSpec


class Beats:
    """Three steps; the reward is 1 for the action that alternates, 0 first."""

    spec = EnvSpec.single("beats", Box((1,)), Discrete(2), 3)

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), jnp.zeros(1)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        reward = (action == state % 2).astype(jnp.float32)
        return state + 1, TimeStep(jnp.zeros(1), reward, state == 2, jnp.bool_(False))


class State(NamedTuple):
    params: Any


@dataclass(frozen=True)
class Alternates(Algorithm):
    """Remembers how many steps it has taken, and does the right thing unless it explores."""

    actions = (Discrete,)

    def init(self, key: Any, spec: Any) -> State:
        return State(jnp.zeros(3))

    def initial_memory(self, spec: Any) -> Any:
        return jnp.int32(0)

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Act:
        right = memory % 2
        return Act(1 - right if explore else right, memory + 1)

    def learn(self, state: State, batch: Any, key: Any) -> Any:
        return State(state.params + 1), {"reward": batch.reward.mean()}

    def loop(self, flow: Any) -> None:
        flow.learn(self.learn, flow.rollout(self.act, steps=4))
