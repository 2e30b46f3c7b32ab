"""Environments that report metrics of their episodes, on the host and in JAX, and that can be told not to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from runnel.environment import TimeStep
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

SCALE = 100
"""How much larger the score is than the sum of the rewards, times the setting `scores`."""


class Darts(gymnasium.Env):
    """3 to 6 throws; a reward of 1 or 0 for each, which is the action. Its infos have numbers and other things."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reports: bool = True, scores: int = 0):
        self.reports, self.scores = reports, scores

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.throws = int(self.np_random.integers(3, 7))
        self.mark = float(self.np_random.random())  # no other episode of a run has it
        self.thrown, self.total = 0, 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.thrown += 1
        self.total += int(action)
        return self._observe(), float(action), self.thrown == self.throws, False, self._info()

    def _observe(self) -> np.ndarray:
        return np.array([self.thrown, self.throws], np.float32)

    def _info(self) -> dict[Any, Any]:
        if not self.reports:
            return {}
        own = {"return": self.scores * SCALE * self.total, "length": 10 * self.thrown} if self.scores else {}
        numbers = {"is_success": self.total >= 2, "throws": np.int64(self.thrown), "total": np.array(float(self.total))}
        numbers["mark"] = self.mark
        others = {
            "TimeLimit.truncated": False, "episode": {"r": 1.0}, "label": "darts", "vector": np.zeros(2), "none": None,
            "nan": float("nan"), "endless": float("inf"), "huge": 10**400, "when": np.datetime64("2020"), 7: 7.0,
            "a name": 1.0, "n" * 65: 1.0, "complex": 1j,
        }  # fmt: skip
        return {**own, **others, **numbers}


class Older:
    """A host environment whose vectors have no `episode_metrics`, as they were written before there was one."""

    def __init__(self) -> None:
        self._inner = GymnasiumEnvironment(Darts)
        self.spec = self._inner.spec

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> Any:
        return _OlderVector(self._inner.open(indices, seed, render))


class _OlderVector:
    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("episode_metrics", "lives"):
            raise AttributeError(name)
        return getattr(self._inner, name)


class TracedDarts:
    """The same in JAX."""

    spec = EnvSpec.single("darts", Box((2,), np.dtype(np.float32), 0.0, 10.0), Discrete(2), 6)

    def __init__(self, reports: bool = True, scores: int = 0):
        self.reports, self.scores = reports, scores

    def reset(self, key: Any) -> Any:
        state = (jax.random.randint(key, (), 3, 7, jnp.int32), jnp.int32(0), jnp.int32(0))
        return state, self._observe(state)

    def step(self, state: Any, action: Any, key: Any) -> Any:
        throws, thrown, total = state
        state = throws, thrown, total = throws, thrown + 1, total + action
        over, reward = thrown == throws, action.astype(jnp.float32)
        return state, TimeStep(self._observe(state), reward, over, jnp.bool_(False), self._metrics(thrown, total))

    def _observe(self, state: Any) -> Any:
        return jnp.stack([state[1], state[0]]).astype(jnp.float32)

    def _metrics(self, thrown: Any, total: Any) -> Any:
        if not self.reports:
            return ()
        own = {"return": self.scores * SCALE * total, "length": 10 * thrown} if self.scores else {}
        nan = jnp.where(total > 1, jnp.nan, 1.0)
        return {"is_success": total >= 2, "throws": thrown, "total": total.astype(jnp.float32), "sometimes": nan, **own}


class Match:
    """Two groups, of one and of two agents, for three steps; each reports metrics and a score of its own."""

    spec = EnvSpec(
        "match",
        {"solo": AgentSpec(Box((1,)), Discrete(2)), "pair": AgentSpec(Box((1,)), Discrete(2), agents=2)},
        3,
    )

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), self._observe(jnp.int32(0))

    def step(self, state: Any, action: Any, key: Any) -> Any:
        clock = state + 1
        reward = {"solo": jnp.float32(1.0), "pair": jnp.array([2.0, 4.0], jnp.float32)}
        own = {
            "solo": {"clock": clock, "return": 10.0 * clock},
            "pair": {"clock": clock, "return": 20.0 * clock, "even": clock % 2 == 0},
        }
        return clock, TimeStep(self._observe(clock), reward, jnp.bool_(False), clock >= 3, own)

    def _observe(self, clock: Any) -> Any:
        seen = clock.astype(jnp.float32)
        return {"solo": seen[None], "pair": jnp.stack([seen[None], seen[None]])}
