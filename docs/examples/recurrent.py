"""Reinforce with recurrent memory: only the way from observations to policy and value changes."""

from dataclasses import dataclass

import jax
import optax
from reinforce import Reinforce, State

from runnel.nn import GRU, ActorCritic, head_for, network_for
from runnel.ops import returns
from runnel.types import zeros


@dataclass(frozen=True)
class RecurrentReinforce(Reinforce):
    """Reinforce that remembers earlier observations."""

    memory_size: int = 32

    def init(self, key, spec):
        network, head = network_for(spec.observation), head_for(spec.action)
        gru = GRU(self.memory_size)
        params = ActorCritic.create(key, network, head, zeros(spec.observation), gru, towers=False)
        return State(params, self._optimiser().init(params))

    def initial_memory(self, spec):  # one agent's, when an episode begins
        return GRU(self.memory_size).initial_memory()

    def _unroll(self, params, trajectory):
        """[T, B] policies and values; memory starts from that before the first step and resets at `first`."""
        columns = jax.vmap(params.unroll, (1, 1, 0), 1)
        return columns(trajectory.observation, trajectory.first, trajectory.memory)

    def _targets(self, state, trajectory):
        memory = self._unroll(state.params, trajectory).memory  # [T, B, ...] after each step
        v_tm1 = trajectory.extras.value
        v_t = returns.next_values(lambda o, m: state.params.step(o, m).value, v_tm1, trajectory, memory)
        return returns.advantages(
            trajectory.reward, trajectory.terminated, trajectory.truncated, v_tm1, v_t, self.discount, 1.0
        )

    def _loss(self, params, trajectory, advantage, target):
        policy, value, _ = self._unroll(params, trajectory)
        policy_loss = -(policy.log_prob(trajectory.extras.sample) * advantage).mean()
        value_loss = optax.l2_loss(value, target).mean()
        return policy_loss + 0.5 * value_loss, {"policy_loss": policy_loss, "value_loss": value_loss}
