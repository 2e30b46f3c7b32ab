"""Two groups of agents: a hunter, and two runners that share one policy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from reinforce import Reinforce

from runnel import AgentSpec, Box, Discrete, EnvSpec, TimeStep


class Tag:
    """On a line: the hunter gains what the runners lose by being near it."""

    spec = EnvSpec(
        "tag",
        {
            "hunter": AgentSpec(Box((3,)), Discrete(2)),
            "runners": AgentSpec(Box((2,)), Box((1,), np.dtype(np.float32), -1.0, 1.0), agents=2),
        },
        max_episode_steps=10,
    )

    def reset(self, key):
        runners = jax.random.uniform(key, (2,), jnp.float32, -1, 1)
        state = (jnp.float32(0), runners, jnp.int32(0))
        return state, self._observe(state)

    def step(self, state, action, key):  # actions come by group; those of two agents are [2, ...]
        hunter, runners, clock = state
        hunter = hunter + jnp.where(action["hunter"] == 1, 0.1, -0.1).astype(jnp.float32)
        runners = jnp.clip(runners + 0.1 * action["runners"][:, 0], -1, 1)
        distance = jnp.abs(runners - hunter)
        reward = {"hunter": -distance.sum(), "runners": distance}
        state = (hunter, runners, clock + 1)
        return state, TimeStep(self._observe(state), reward, jnp.bool_(False), clock + 1 >= 10)

    def _observe(self, state):
        hunter, runners, _ = state
        return {
            "hunter": jnp.concatenate([hunter[None], runners]),
            "runners": jnp.stack([runners, runners - hunter], -1),
        }


@dataclass(frozen=True)
class OnlyOneLearns(Reinforce):
    """Every group acts; one of them learns."""

    learner: str = "hunter"

    def loop(self, flow):
        for group in flow.groups:
            agents = flow.agents(group)
            trajectory = agents.rollout(self.act, steps=self.unroll)
            if group == self.learner:
                agents.learn(self.learn, trajectory)
