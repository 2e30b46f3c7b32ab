"""Vectors as a user would write them: `gymnasium.vector.VectorEnv` in every autoreset mode, with steps that count."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space


class Counter(gymnasium.Env):
    """Shows its episode, the steps taken in it and the last action; its reward is 10 times the episode plus the step.

    Episodes have 2 to 5 steps, and end in both ways.
    """

    observation_space = spaces.Box(-1, 1e6, (3,), np.float32)
    action_space = spaces.Discrete(4)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.episode, self.count, self.action = -1, 0, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.count, self.action = self.episode + 1, 0, -1
        self.length = int(self.np_random.integers(2, 6))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert self.count < self.length, "a step after the end of an episode"
        self.count, self.action = self.count + 1, int(action)
        over, cut = self.count == self.length, self.length % 2 == 0
        info = {"score": self.count * 1.5, "is_success": over and not cut, "note": "text", "nested": {"x": 1}}
        return self._observe(), 10.0 * self.episode + self.count, over and not cut, over and cut, info

    def render(self) -> Any:
        return np.full((4, 6, 3), self.count, np.uint8)

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.count, self.action], np.float32)


class OwnVector(VectorEnv):
    """A user's own class: takes one seed for all, and resets single environments only where its mode asks for that."""

    def __init__(self, num_envs: int = 3, mode: str = "NEXT_STEP", render_mode: str | None = None):
        self.num_envs, self.render_mode, self.mode = num_envs, render_mode, AutoresetMode[mode]
        self.metadata = {"autoreset_mode": self.mode, "render_modes": ["rgb_array"]}
        self.envs = [Counter() for _ in range(num_envs)]
        self.single_observation_space, self.single_action_space = Counter.observation_space, Counter.action_space
        self.observation_space = batch_space(Counter.observation_space, num_envs)
        self.action_space = batch_space(Counter.action_space, num_envs)
        self.ended = np.zeros(num_envs, bool)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is None or isinstance(seed, int)
        mask = np.ones(self.num_envs, bool)
        if options:
            assert self.mode is AutoresetMode.DISABLED
            mask = options["reset_mask"]
        for i in np.flatnonzero(mask):
            self.envs[i].reset(seed=None if seed is None else seed + int(i))
        self.ended &= ~mask
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        assert self.action_space.contains(actions), actions
        reward, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), bool)
        info: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if self.mode is AutoresetMode.NEXT_STEP and self.ended[i]:
                env.reset()
                continue
            observation, reward[i], terminated[i], truncated[i], own = env.step(actions[i])
            if self.mode is AutoresetMode.SAME_STEP and (terminated[i] or truncated[i]):
                info = self._add_info(info, {"final_obs": observation, "final_info": own}, i)
                env.reset()
            else:
                info = self._add_info(info, own, i)
        self.ended = terminated | truncated
        return self._observe(), reward, terminated, truncated, info

    def render(self) -> Any:
        return tuple(env.render() for env in self.envs)

    def _observe(self) -> np.ndarray:
        return np.stack([env._observe() for env in self.envs])


def own(mode: str) -> Callable[..., VectorEnv]:
    return partial(OwnVector, mode=mode)


def sync(num_envs: int, mode: str = "NEXT_STEP", copy: bool = True) -> VectorEnv:
    return SyncVectorEnv([Counter] * num_envs, copy=copy, autoreset_mode=AutoresetMode[mode])


def async_(num_envs: int, mode: str = "NEXT_STEP", shared_memory: bool = True) -> VectorEnv:
    return AsyncVectorEnv(
        [Counter] * num_envs, context="forkserver", autoreset_mode=AutoresetMode[mode], shared_memory=shared_memory
    )


def three() -> VectorEnv:
    """A number of its own."""
    return sync(3, "SAME_STEP")


MADE = sync(2, "SAME_STEP")
"""One that is made already, in each process that imports this module."""


def cartpoles(num_envs: int, mode: str = "SAME_STEP") -> VectorEnv:
    return gymnasium.make_vec(
        "CartPole-v1", num_envs, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode[mode]}
    )


class Dict(VectorEnv):
    """Observations in parts: Dict and Tuple; last observations as arrays, as simulators give them."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = spaces.Dict(
        {"place": spaces.Box(-1e6, 1e6, (2,)), "pair": spaces.Tuple((spaces.Discrete(100), spaces.Box(0, 9, (1,))))}
    )
    single_action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))

    def __init__(self, num_envs: int):
        self.num_envs, self.count = num_envs, np.zeros(num_envs, np.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.count[:] = 0
        return self._observe(), {}

    def step(self, actions: Any) -> Any:
        assert actions.shape == (self.num_envs, 2)
        self.count += 1
        over, last = self.count >= 3 + np.arange(self.num_envs), self._observe()
        self.count[over] = 0
        return self._observe(), np.ones(self.num_envs), over, np.zeros_like(over), {"final_obs": last}

    def _observe(self) -> dict[str, Any]:
        count = self.count.copy()
        place = np.stack([count, -count], 1).astype(np.float32)
        return {"place": place, "pair": (count, np.ones((self.num_envs, 1), np.float32))}


class Sick(OwnVector):
    """Breaks at its 4th step of all: `way` says how; or at each from there on."""

    steps = 0

    def __init__(self, num_envs: int = 3, mode: str = "DISABLED", way: str = "raise", often: bool = False):
        super().__init__(num_envs, mode)
        self.way, self.often = way, often
        if Sick.steps > 3 and way == "make" and often:
            raise MemoryError("no room")

    def step(self, actions: Any) -> Any:
        Sick.steps += 1
        observation, reward, terminated, truncated, info = super().step(actions)
        if Sick.steps == 4 or (self.often and Sick.steps > 4):
            match self.way:
                case "raise" | "make":
                    raise ConnectionError("the simulator went away")
                case "nan":
                    observation[1] = np.nan
                case "nan reward":
                    reward[1] = np.nan
                case "shape":
                    observation = observation[:1]
                case "rewards":
                    reward = reward[:1]
                case "flags":
                    terminated = terminated[None]
        return observation, reward, terminated, truncated, info


class Silent(OwnVector):
    """Says nothing of its last observations."""

    def __init__(self, num_envs: int = 2):
        super().__init__(num_envs, "SAME_STEP")

    def step(self, actions: Any) -> Any:
        return (*super().step(actions)[:4], {})


class Mute(OwnVector):
    """Has no infos."""

    def step(self, actions: Any) -> Any:
        return (*super().step(actions)[:4], None)


class Undeclared(OwnVector):
    """Does not say when it resets."""

    def __init__(self, num_envs: int = 2):
        super().__init__(num_envs)
        self.metadata = {}


class Spaceless(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int = 2):
        self.num_envs = num_envs


def stubborn(num_envs: int) -> VectorEnv:
    """Makes another number than it is asked for."""
    return sync(num_envs + 1)
