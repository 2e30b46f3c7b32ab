"""The content of a trajectory."""

import jax
import jax.numpy as jnp
import numpy as np
from toys import Corridor, Reinforce

from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.types import Act


class Counts(Reinforce):
    """Remembers how many steps of the episode there were, and never arrives: episodes are cut after 20 steps."""

    def initial_memory(self, spec):
        return jnp.int32(0)

    def act(self, params, observation, memory, key, explore):
        return Act(jnp.int32(0), memory + 1)

    def loop(self, flow):
        flow.learn(self.learn, flow.rollout(self.act, 5))


def test_memory_is_that_before_the_first_step_and_new_where_an_episode_begins():
    loop = Loop(trace(Counts(), Corridor.spec, 3), Corridor())
    unroll, carry = jax.jit(loop.unroll), loop.init(jnp.uint32(0))
    found = []
    for _ in range(6):
        carry, trajectories, _ = unroll(carry)
        trajectory = trajectories["agent"]
        clock = np.round(trajectory.observation[0, :, 1] * 20).astype(int)
        np.testing.assert_array_equal(trajectory.memory, clock)
        found.append(int(clock[0]))
    assert found == [0, 5, 10, 15, 0, 5]
