"""Monte-Carlo policy gradient (Williams, 1992), with a value as its baseline: a complete algorithm in one file."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import optax

from runnel import Act, Algorithm
from runnel.nn import ActorCritic, head_for, network_for
from runnel.ops import returns
from runnel.types import zeros


class State(NamedTuple):
    """What learning needs; `params` is what acting needs."""

    params: ActorCritic
    optimiser: Any


class Extras(NamedTuple):
    """What acting passes to learning."""

    sample: Any  # what the policy drew; the action may be a clipped form of it
    value: Any  # [] of the observation


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """Makes actions that did better than expected more likely."""

    learning_rate: float = 3e-3
    discount: float = 0.99
    unroll: int = 64  # steps of every environment per update
    entropy_cost: float = 0.01

    def init(self, key, spec):
        head = head_for(spec.action)
        params = ActorCritic.create(key, network_for(spec.observation), head, zeros(spec.observation))
        return State(params, self._optimiser().init(params))

    def act(self, params, observation, memory, key, explore):  # one observation: runnel batches it
        policy, value, memory = params.step(observation, memory)
        sample = policy.sample(key) if explore else policy.mode()
        return Act(params.head.action(sample), memory, Extras(sample, value))

    def learn(self, state, trajectory, key):  # fields are [time, batch, ...]
        advantage, target = self._targets(state, trajectory)
        grads, metrics = jax.grad(self._loss, has_aux=True)(state.params, trajectory, advantage, target)
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        return State(optax.apply_updates(state.params, changes), optimiser), metrics

    def loop(self, flow):  # the training loop
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory)

    def _targets(self, state, trajectory):
        v_tm1 = trajectory.extras.value
        v_t = returns.next_values(lambda o: state.params.step(o, ()).value, v_tm1, trajectory)
        return returns.advantages(
            trajectory.reward, trajectory.terminated, trajectory.truncated, v_tm1, v_t, self.discount, 1.0
        )

    def _loss(self, params, trajectory, advantage, target):
        policy, value, _ = jax.vmap(jax.vmap(lambda o: params.step(o, ())))(trajectory.observation)
        policy_loss = -(policy.log_prob(trajectory.extras.sample) * advantage).mean()
        value_loss = optax.l2_loss(value, target).mean()
        entropy = policy.entropy().mean()
        loss = policy_loss + 0.5 * value_loss - self.entropy_cost * entropy
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}

    def _optimiser(self):
        return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(self.learning_rate))
