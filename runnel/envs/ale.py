"""Atari games, through ale-py's C++ environments: 84 x 84 greys, four pictures stacked. No JAX is imported here.

Each environment is a C++ vector of one, because games that are stepped as one vector cannot begin their episodes one by
one. The vector's own loop is that of Gymnasium's environments. A game has a thread of its own, and all receive their
actions before the first is waited for.

Seeding the emulator takes a hundred milliseconds, beginning a game five; without randomness of its own, a game is the
same whenever it is given the same actions. So random numbers are drawn here, from the episode's seed: how long the game
does nothing at first, and where a step repeats the action before it.

What learning sees is what is counted: where rewards are clipped, so is the return, and where the loss of a life ends an
episode, the return is that of one life. In Pong neither makes a difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium.wrappers import TimeLimit

from runnel.envs import spaces
from runnel.envs.gymnasium_vector import GymnasiumVector
from runnel.errors import UserError, nearest
from runnel.types import EnvSpec

NEVER = 2**30
"""Frames after which the emulator cuts an episode: the vector cuts it before."""

FULL_STRENGTH = np.ones(1, np.float32)
"""How far the joystick is moved."""

IN_COLOUR = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
"""What is asked for of a game that is to be looked at: the screen as it is."""


@dataclass(frozen=True)
class AleSettings:
    """What can be set: `runnel train ppo ALE/Pong-v5 --set env.sticky=0.25`."""

    reward_clip: bool = True  # rewards are -1, 0 or 1
    no_ops: int = 30  # an episode begins with at most so many frames of doing nothing, in whole steps
    sticky: float = 0.0  # the chance that a step repeats the action before it
    life_loss: bool = False  # the loss of a life ends the episode; the next begins with a new game, as every one does
    fire: bool = True  # fire is pressed once where a game has it: some do not begin before
    full_actions: bool = False  # all of the joystick, and not only what this game knows
    frame_skip: int = 4  # frames of a step: it shows the brighter of each pixel in the last two
    stack: int = 4  # how many pictures are shown, the newest last
    max_frames: int = 108_000  # half an hour of play, then an episode is cut

    @property
    def emulator(self) -> dict[str, Any]:
        """The same in ale-py's words, without any chance."""
        return {
            "reward_clipping": self.reward_clip,
            "episodic_life": self.life_loss,
            "use_fire_reset": self.fire,
            "full_action_space": self.full_actions,
            "frameskip": self.frame_skip,
            "stack_num": self.stack,
            "max_num_frames_per_episode": NEVER,
            "noop_max": 0,
            "repeat_action_probability": 0.0,
            "num_threads": 1,
        }


class AleEnvironment:
    """An Atari game: `AleEnvironment("Pong-v5", sticky=0.25)`."""

    def __init__(self, name: str, /, **settings: Any):
        """`settings` are fields of `AleSettings`."""
        self._name = f"ALE/{name}"
        self._rom = _rom_of(name)
        self._settings = _checked(self._name, settings)
        probe = AtariGame(self._rom, self._settings)
        self._observations = spaces.observations(probe.observation_space, self._name)
        self._actions = spaces.actions(probe.action_space, self._name)
        native = spaces.native_format(probe.observation_space, probe.action_space, self._name)
        probe.close()
        self.spec = EnvSpec.single(self._name, self._observations.space, self._actions.space, self._limit, native)

    @property
    def _limit(self) -> int:
        return max(1, self._settings.max_frames // self._settings.frame_skip)

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> AleVector:
        make = partial(self._make, render)
        return AleVector(self._name, make, indices, seed, self._observations, self._actions)

    def _make(self, render: bool) -> gymnasium.Env:
        return TimeLimit(AtariGame(self._rom, self._settings, render), self._limit)


class AtariGame(gymnasium.Env):
    """One game. `step` has two parts, so that other games step between them: `send`, then `receive`."""

    def __init__(self, rom: str, settings: AleSettings, render: bool = False):
        self._emulators = [AtariVectorEnv(rom, 1, **settings.emulator)]
        if render:  # the same game once more, in colour, and given the same actions
            self._emulators.append(AtariVectorEnv(rom, 1, **{**settings.emulator, **IN_COLOUR}))
        self.observation_space = self._emulators[0].single_observation_space
        self.action_space = self._emulators[0].single_action_space
        count = int(cast(gymnasium.spaces.Discrete, self.action_space).n)
        self._codes = {action: np.array([action], np.int32) for action in range(count)}
        self._longest_wait = settings.no_ops // settings.frame_skip
        self._sticky = settings.sticky
        self._random = np.random.default_rng(0)
        self._before = self._waiting = -1
        self._picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        self._before, self._waiting = 0, -1
        observation = self._begin()
        for _ in range(self._random.integers(self._longest_wait + 1)):
            observation, _, terminated, _, _ = self.step(0)
            if terminated:
                return self._begin(), {}
        return observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.send(action)
        return self.receive()

    def send(self, action: Any) -> None:
        """Begins a step, unless one is begun."""
        if self._waiting >= 0 or action not in self._codes:
            return
        if self._sticky and self._random.random() < self._sticky:
            action = self._before
        self._before = self._waiting = int(action)
        for emulator in self._emulators:
            emulator.ale.send(self._codes[self._waiting], FULL_STRENGTH)

    def receive(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """What the step that was begun gave."""
        if self._waiting < 0:  # the emulator would never answer
            raise ValueError(f"an action that is none of the game's; wanted one from 0 to {len(self._codes) - 1}")
        self._waiting = -1
        observation, reward, terminated, *_ = self._look([emulator.ale.recv() for emulator in self._emulators])
        return observation[0], float(reward[0]), bool(terminated[0]), False, {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._picture

    def close(self) -> None:
        self._emulators = []  # which ends their threads

    def _begin(self) -> np.ndarray:
        observation, _ = self._look([emulator.reset() for emulator in self._emulators])
        return observation[0]

    def _look(self, answers: list[Any]) -> Any:
        """The result of the game itself, once the one rendered in colour has been read."""
        if len(answers) > 1:
            self._picture = answers[1][0][0, -1]
        return answers[0]


class AleVector(GymnasiumVector):
    """Several games, which step at the same time."""

    def _step_each(self, actions: Iterable[Any]) -> Iterable[Any]:
        games = cast("list[AtariGame]", self._bare)
        for game, action in zip(games, actions, strict=True):
            game.send(action)
        return map(AtariGame.receive, games)


def _rom_of(name: str) -> str:
    """What the emulator calls the game: `ms_pacman` for `MsPacman-v5`."""
    registered = gymnasium.registry.items()  # importing ale-py has registered its games
    known = {id.removeprefix("ALE/"): spec.kwargs["game"] for id, spec in registered if id.startswith("ALE/")}
    if name not in known:
        names = [f"ALE/{game}" for game in known]
        raise UserError(f"no Atari game is called 'ALE/{name}'{nearest(f'ALE/{name}', names)}")
    return known[name]


def _checked(name: str, settings: dict[str, Any]) -> AleSettings:
    defaults = {field.name: field.default for field in dataclasses.fields(AleSettings)}
    for key, value in settings.items():
        if key not in defaults:
            raise UserError(f"{name} has no setting '{key}'{nearest(key, defaults)}")
        kind = type(defaults[key])
        fits = type(value) is kind or (kind is float and type(value) is int)
        if not fits or value < 0 or (kind is float and value >= 1) or (key in ("frame_skip", "stack") and value < 1):
            wanted = {bool: "true or false", int: "a whole number", float: "a number from 0 to 1"}[kind]
            raise UserError(f"{name}: setting {key} is {value!r}; wanted {wanted}, like {defaults[key]!r}")
    return AleSettings(**settings)
