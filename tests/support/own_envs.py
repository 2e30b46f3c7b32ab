"""Environments as a user would write them, each with one thing that is easily got wrong."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from runnel.envs.gymnasium import GymnasiumEnvironment


class Camera(gymnasium.Env):
    """Dict and Tuple observations, MultiDiscrete actions; the picture is large, the counts begin at -1."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (20, 20, 3), np.uint8),
            "arm": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(4, start=-1))),
            "lamps": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.MultiDiscrete([3, 2], start=[1, -1])

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1, 2)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), action
        self.steps += 1
        self.place = np.clip(self.place + 0.1 * action, -1, 1)
        return self._observe(), float(self.place.sum()), self.steps >= 9, False, {}

    def _observe(self) -> dict[str, Any]:
        return {
            "picture": self.np_random.integers(0, 256, (20, 20, 3), np.uint8),
            "arm": (self.place, self.steps % 4 - 1),
            "lamps": np.array([self.steps % 2, self.steps % 3 > 0, 1], np.int8),
        }


class Drunkard(gymnasium.Env):
    """Draws from `np_random` at every step, shows one buffer that it overwrites, and ends at random."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32))

    def __init__(self, wind: float = 0.0):
        self.wind = wind
        self.place = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place[:] = self.np_random.normal(size=2)
        return self.place, {}

    def step(self, action: np.ndarray) -> Any:
        assert self.action_space.contains(action), action
        self.place += self.wind + 0.3 * action + self.np_random.normal(size=2)
        return self.place, -abs(float(self.place[0])), bool(self.np_random.random() < 0.1), False, {}


class Sheltered(Drunkard):
    """Settings of all plain types."""

    def __init__(self, wind: float = 0.0, seats: int | None = 3, label: str = "", calm: bool = False):
        super().__init__(wind)


class Blind(gymnasium.Env):
    """Forgets its spaces."""

    def __init__(self) -> None:
        pass


class Inert(gymnasium.Env):
    """Forgets what it can do."""

    observation_space = spaces.Discrete(2)


class Unlicensed(Drunkard):
    """Cannot be made."""

    def __init__(self, seats: int | None = None):
        raise RuntimeError("no licence\n  found")


class Countdown(gymnasium.Env):
    """Says "terminated" and "truncated" at once; observes and acts in numbers that begin at 5."""

    observation_space = spaces.Discrete(4, start=5)
    action_space = spaces.Discrete(3, start=5)
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 8
        return np.int64(self.left), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.left -= 1
        over = self.left == 5
        return np.int64(self.left), float(action), over, over, {}


class Unsure(gymnasium.Env):
    """Not deterministic: every episode of the process is shorter than the one before."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)
    lengths = iter(range(10, 0, -1))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = next(self.lengths)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), 0.0, self.left == 0, False, {}


class Saboteur(gymnasium.Env):
    """Plays on when its action is 0, ends at 1, and breaks in as many ways as it has other actions."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    ways = ("play", "end", "raise", "nan", "nan reward", "shape", "words", "tuple", "nothing", "reward", "flags",
            "exit", "inf reward", "huge reward", "huger reward", "complex", "complex reward",
            "no reset", "nan reset", "shape reset", "tuple reset", "exit reset", "complex reset")  # fmt: skip
    action_space = spaces.Discrete(len(ways))
    steps = 0  # of all there ever were
    closed: ClassVar[list[int]] = []  # ids of those that were closed

    def __init__(self) -> None:
        self.then = ""  # how the next reset will break
        self.place = np.zeros(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        then, self.then = self.then, ""
        if then == "no reset":
            raise OSError("the door is\n  locked")
        if then == "exit reset":
            raise SystemExit(0)
        self.place[:] = self.np_random.normal(size=3)
        breaks = {"nan reset": np.full(3, np.nan), "shape reset": np.zeros(2), "complex reset": self.place + 0j}
        broken = breaks.get(then, self.place)
        return broken if then == "tuple reset" else (broken, {})

    def step(self, action: Any) -> Any:
        Saboteur.steps += 1
        way = self.ways[int(action)]
        self.place += self.np_random.normal(size=3)
        whole = (self.place, float(self.place[0]), False, False, {})
        match way:
            case "play":
                return whole
            case "raise":
                raise ValueError("bad thing")
            case "nan":
                self.place[1] = np.nan
                return whole
            case "exit":
                raise SystemExit(0)
            case "nan reward" | "inf reward" | "huge reward" | "huger reward" | "complex reward":
                given = {"nan": np.nan, "inf": -np.inf, "huge": 1e300, "huger": 10**400, "complex": 1j}
                return (self.place, given[way.split()[0]], *whole[2:])
            case "complex":
                return (self.place + 0j, *whole[1:])
            case "shape":
                return (self.place[:1], *whole[1:])
            case "words":
                return (["a", "b", "c"], *whole[1:])
            case "tuple":
                return whole[:4]
            case "nothing":
                return None
            case "reward":
                return (self.place, np.zeros(2), *whole[2:])
            case "flags":
                return (self.place, 0.0, np.zeros(2, bool), False, {})
        self.then = way
        return (self.place, 1.0, True, False, {})

    def close(self) -> None:
        self.closed.append(id(self))
        if self.place.any():
            raise RuntimeError("cannot be closed either, once played")


class Broken(Drunkard):
    """Works for some steps, of all environments together, and never again."""

    left = 0

    def __init__(self, fails: str = "step"):
        super().__init__()
        self.fails = fails
        if fails == "make" and self.left < 0:
            raise MemoryError("no room")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.fails == "reset" and Broken.left <= 0:
            raise ValueError("worn out")
        return super().reset(seed=seed)

    def step(self, action: np.ndarray) -> Any:
        Broken.left -= 1
        if Broken.left < 0:
            raise ValueError("worn out")
        return (*super().step(action)[:2], False, False, {})


class Faulty(gymnasium.Wrapper):
    """CartPole, of which one step in a hundred fails."""

    failed = 0  # steps of all there ever were

    def __init__(self, chance: float = 0.01):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.chance = chance

    def step(self, action: Any) -> Any:
        drawn = self.unwrapped.np_random.random()
        Faulty.failed += drawn < self.chance
        if drawn < self.chance / 2:
            raise ConnectionError("the simulator went away")
        observation, *rest = self.env.step(action)
        return (observation * np.float32(np.nan) if drawn < self.chance else observation, *rest)


def limited(steps: int = 7, render_mode: str | None = None) -> gymnasium.Env:
    """A factory with wrappers inside and outside the time limit."""
    return gymnasium.wrappers.FlattenObservation(
        gymnasium.make("CartPole-v1", max_episode_steps=steps, render_mode=render_mode)
    )


def gives_a_string() -> str:
    return "not an environment"


def host() -> GymnasiumEnvironment:
    """A callable that gives a HostEnvironment, ready made."""
    return GymnasiumEnvironment(Drunkard)


INSTANCE = GymnasiumEnvironment(Countdown)
