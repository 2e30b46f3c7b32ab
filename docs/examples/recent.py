"""A replay of your own: it draws recent transitions more often than old ones."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from q_learning import QLearning

from runnel import UniformReplay


@dataclass(frozen=True)
class RecentReplay(UniformReplay):
    """Keeps items as `UniformReplay` does; the relative age of a drawn item is a power of a uniform number."""

    power: float = 2.0

    def sample(self, state, key, batch):
        size = jnp.where(state.is_full, self.capacity, state.current_index)
        age = jnp.floor(size * jax.random.uniform(key, (batch,)) ** self.power).astype(jnp.int32)
        place = (state.current_index - 1 - age) % self.capacity
        return jax.tree.map(lambda kept: kept[0, place], state.experience)  # kept: [1, capacity, ...]


@dataclass(frozen=True)
class RecentQLearning(QLearning):
    """Q-learning from recent transitions."""

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=4)
        replay = flow.replay(RecentReplay(capacity=10_000))
        replay.insert(flow.map(self.transitions, trajectory))
        flow.learn(self.learn, replay.sample(batch=64, min_size=1_000, samples_per_insert=2.0))
