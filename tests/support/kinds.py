"""An algorithm with a float whose value Python code needs, or not, depending on another setting."""

import math
from dataclasses import dataclass
from typing import Any

import jax

from runnel.algorithms.ppo import PPO


@dataclass(frozen=True)
class Kinds(PPO):
    """PPO whose parameters decay after each update, by `extra`: for kind `b`, Python computes its logarithm."""

    unroll: int = 8
    minibatches: int = 2
    epochs: int = 1
    hidden: tuple[int, ...] = (8,)
    kind: str = "a"
    extra: float = 1.0
    weight: float | None = None

    def learn(self, state: Any, trajectory: Any, key: Any) -> Any:
        decay = math.log(self.extra) if self.kind == "b" else self.extra
        if self.weight is not None:
            decay = decay * self.weight
        state, out = super().learn(state, trajectory, key)
        params = jax.tree.map(lambda x: x * (1 - 1e-2 * decay), state.params.actor_critic)
        return state._replace(params=state.params._replace(actor_critic=params)), out
