"""Several agents with all that observations can carry: legal actions, who has a turn, and the whole state."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.observations import parted
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

EDGE = 3
STAY, DOWN, UP = 0, 1, 2


def flags(*shape):
    return Box(shape, np.dtype(np.bool_), 0, 1)


class Meeting:
    """Two walkers on a line want to meet, the second of whom rests every third step; a watcher bets on which is higher.

    Walkers may not step over the edge, and are paid together. Those who meet at the middle are done.
    """

    spec = EnvSpec(
        "meeting",
        {
            "walkers": AgentSpec(
                parted(Box((2,)), action_mask=flags(3), active=flags(), state=Box((3,))), Discrete(3), agents=2
            ),
            "watcher": AgentSpec(parted(Box((2,)), state=Box((3,))), Discrete(2)),
        },
        10,
    )

    def reset(self, key):
        state = (jax.random.randint(key, (2,), -EDGE, EDGE + 1, jnp.int32), jnp.int32(0))
        return state, self._observe(state)

    def step(self, state, action, key):
        places, clock = state
        moves = jnp.where(action["walkers"] == STAY, 0, jnp.where(action["walkers"] == UP, 1, -1))
        after = jnp.where(self._active(state), places + moves, places)
        illegal = (jnp.abs(after) > EDGE).sum()  # pays well: whoever minds masks never finds out
        after = jnp.clip(after, -EDGE, EDGE).astype(jnp.int32)
        apart = jnp.abs(after[0] - after[1])
        right = jnp.where((places[0] > places[1]) == (action["watcher"] == 1), 1.0, -1.0)
        reward = {"walkers": jnp.full(2, 10.0 * illegal - 0.1 * apart), "watcher": right}
        reward = jax.tree.map(lambda x: x.astype(jnp.result_type(float)), reward)
        state = (after, clock + 1)
        met = (apart == 0) & (after[0] == 0)
        return state, TimeStep(self._observe(state), reward, met, (clock + 1 >= 10) & ~met)

    def _active(self, state):
        return jnp.stack([jnp.bool_(True), state[1] % 3 != 2])

    def _observe(self, state):
        places, clock = state
        active = self._active(state)
        here = places.astype(jnp.float32) / EDGE
        legal = jnp.stack([jnp.ones(2, bool), places > -EDGE, places < EDGE], -1) | ~active[:, None]
        whole = jnp.concatenate([here, clock[None].astype(jnp.float32) / 10])
        return {
            "walkers": parted(jnp.stack([here, here[::-1]], -1), legal, active, jnp.stack([whole, whole])),
            "watcher": parted(here, state=whole),
        }
