"""Settings that the plan decides: Reinforce that weights its samples where they may be old."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from reinforce import Reinforce

from runnel import Act


class Extras(NamedTuple):
    """What acting passes to learning."""

    sample: Any
    value: Any
    log_prob: Any  # [] of the sample, when it was drawn


@dataclass(frozen=True)
class Lagging(Reinforce):
    """Reduces the weight of a step that the current policy would rarely take."""

    weights: bool | None = None  # none: if samples may be old
    reuses: int = 2  # how often an unroll may be learnt from

    @property
    def max_staleness(self):
        return 0 if self.weights is False else 4

    def for_staleness(self, staleness):  # 0: actors wait for the learner
        return self if self.weights is not None else replace(self, weights=staleness > 0)

    def act(self, params, observation, memory, key, explore):
        policy, value, memory = params.step(observation, memory)
        sample = policy.sample(key) if explore else policy.mode()
        return Act(params.head.action(sample), memory, Extras(sample, value, policy.log_prob(sample)))

    def _targets(self, state, trajectory):
        advantage, target = super()._targets(state, trajectory)
        if self.weights:
            policy, *_ = jax.vmap(jax.vmap(lambda o: state.params.step(o, ())))(trajectory.observation)
            ratio = jnp.exp(policy.log_prob(trajectory.extras.sample) - trajectory.extras.log_prob)
            advantage = jnp.minimum(ratio, 1.0) * advantage
        return advantage, target
