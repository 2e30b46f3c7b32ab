"""Atari games through ale-py's C++ environments: 84 x 84 grey frames, four stacked. No JAX is imported here.

Each environment is a C++ vector of one, because games stepped as one vector cannot begin their episodes independently.
The loop over environments is that of Gymnasium's. Each game has its own thread, and all receive their actions before
the first is waited for.

Seeding the emulator takes a hundred milliseconds, beginning a game five. A game without randomness of its own is
determined by its actions. So random numbers are drawn here, from the episode's seed: the number of no-ops at the
beginning, and the steps that repeat the previous action.

Clipped rewards and episodes of one life are computed here, for learning, because the emulator has neither. The score of
the whole game is reported. A game continues after the loss of a life, as usual since DQN; a numbered and replayed
episode is the whole game.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import gymnasium
import numpy as np
from ale_py import Action
from ale_py.vector_env import AtariVectorEnv
from gymnasium.wrappers import TimeLimit

from runnel.environment import HostStep, Lives
from runnel.envs import spaces
from runnel.envs.gymnasium_vector import GymnasiumVector
from runnel.envs.recovery import EnvironmentFault
from runnel.errors import UserError, nearest
from runnel.types import EnvSpec, PyTree

NEVER = 2**30
"""The frames after which the emulator would end an episode; the vector truncates it earlier."""

FULL_STRENGTH = np.ones(1, np.float32)
"""The deflection of the joystick."""

IN_COLOUR = {"img_height": 210, "img_width": 160, "grayscale": False, "stack_num": 1}
"""The emulator's settings for rendering: the screen in full size and colour."""


@dataclass(frozen=True)
class AleSettings:
    """Settings of an Atari game: `runnel train ppo ALE/Pong-v5 --set env.sticky=0.25`."""

    reward_clip: bool = True  # rewards are -1, 0 or 1
    no_ops: int = 30  # an episode begins with at most so many frames of doing nothing, in whole steps
    sticky: float = 0.0  # the chance that a step repeats the action before it
    life_loss: bool = False  # the loss of a life ends an episode for learning; the game goes on
    fire: bool = True  # fire is pressed once as a game begins, and after the loss of a life: some games wait for it
    full_actions: bool = False  # all of the joystick, and not only what this game knows
    frame_skip: int = 4  # frames of a step: it shows the brighter of each pixel in the last two
    stack: int = 4  # how many pictures are shown, the newest last
    max_frames: int = 108_000  # half an hour of play, then an episode is cut

    @property
    def emulator(self) -> dict[str, Any]:
        """The settings as ale-py's: the game itself, without randomness."""
        return {
            "reward_clipping": False,
            "episodic_life": False,
            "use_fire_reset": self.fire,
            "full_action_space": self.full_actions,
            "frameskip": self.frame_skip,
            "stack_num": self.stack,
            "max_num_frames_per_episode": NEVER,
            "noop_max": 0,
            "repeat_action_probability": 0.0,
            "num_threads": 1,
        }

    @property
    def alters_return(self) -> bool:
        """Whether the rewards of an episode as learning sees it do not add up to the game's score."""
        return self.reward_clip or self.life_loss


class AleEnvironment:
    """An Atari game: `AleEnvironment("Pong-v5", sticky=0.25)`."""

    def __init__(self, name: str, /, **settings: Any):
        """`settings` are fields of `AleSettings`."""
        self._name = f"ALE/{name}"
        self._rom = _rom_of(name)
        self._settings = _checked(self._name, settings)
        self.reports_return = self._settings.alters_return
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
        return AleVector(self._name, make, indices, seed, self._observations, self._actions, self._settings.life_loss)

    def _make(self, render: bool) -> gymnasium.Env:
        return TimeLimit(AtariGame(self._rom, self._settings, render), self._limit)


class AtariGame(gymnasium.Env):
    """One game. `step` has two parts, `send` and `receive`, so that other games step in between.

    With `life_loss`, `step` returns `terminated` when a life is lost, and `next_life` continues the game.
    """

    def __init__(self, rom: str, settings: AleSettings, render: bool = False):
        self._emulators = [AtariVectorEnv(rom, 1, **settings.emulator)]
        if render:  # the same game once more, in colour, and given the same actions
            self._emulators.append(AtariVectorEnv(rom, 1, **{**settings.emulator, **IN_COLOUR}))
        self.observation_space = self._emulators[0].single_observation_space
        self.action_space = self._emulators[0].single_action_space
        count = int(cast(gymnasium.spaces.Discrete, self.action_space).n)
        self._codes = {action: np.array([action], np.int32) for action in range(count)}
        self._settings = settings
        self._fire = self._fire_button() if settings.fire else 0
        self._longest_wait = settings.no_ops // settings.frame_skip
        self._sticky = settings.sticky
        self._random = np.random.default_rng(0)
        self._before = self._waiting = -1
        self.alive = False  # a life was lost with the last step, and the game continues
        self.lived = 0  # steps since the game, or the life, began
        self._lives, self._score, self._length = 0, 0.0, 0
        self._picture = np.zeros((210, 160, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._random = np.random.default_rng(seed)
        self._before, self._waiting = 0, -1
        observation = self._begin()
        for _ in range(self._random.integers(self._longest_wait + 1)):
            observation, _, terminated, _, _ = self.step(0)
            if terminated:
                observation = self._begin()
                break
        self._score, self._length, self.lived, self.alive = 0.0, 0, 0, False
        return observation, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.send(action)
        return self.receive()

    def send(self, action: Any) -> None:
        """Begins a step, unless one is in progress."""
        if self._waiting >= 0 or action not in self._codes:
            return
        if self._sticky and self._random.random() < self._sticky:
            action = self._before
        self._press(int(action))

    def _press(self, action: int) -> None:
        self._before = self._waiting = action
        for emulator in self._emulators:
            emulator.ale.send(self._codes[action], FULL_STRENGTH)

    def receive(self) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Returns the result of the step that `send` began."""
        if self._waiting < 0:  # the emulator would never answer
            raise ValueError(f"an action that the game does not have; expected one from 0 to {len(self._codes) - 1}")
        self._waiting = -1
        observation, rewards, ended, _, info = self._look([emulator.ale.recv() for emulator in self._emulators])
        reward, over = float(rewards[0]), bool(ended[0])
        self._score += reward
        self._length += 1
        self.lived += 1
        if self._settings.reward_clip:
            reward = float((reward > 0) - (reward < 0))
        if self._settings.life_loss:
            before, self._lives = self._lives, int(info["lives"][0])
            # Some games continue for a few frames without any life left: only the game reports its end.
            self.alive = 0 < self._lives < before and not over
        return observation[0], reward, over or self.alive, False, {}

    def next_life(self) -> tuple[np.ndarray, bool]:
        """Continues after the loss of a life with one step that no policy chose, fire or no-op. Returns the next
        observation, and whether the game is over."""
        self._press(self._fire)
        observation, _, ended, _, _ = self.receive()
        over = ended and not self.alive
        self.alive, self.lived, self._length = False, 0, self._length - 1
        return observation, over

    def outcome(self) -> dict[str, float]:
        """The game's own score and length so far, if learning uses others; empty before the first step."""
        known = self._settings.alters_return and self._length
        return {"return": self._score, "length": float(self._length)} if known else {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._picture

    def close(self) -> None:
        self._emulators = []  # which ends their threads

    def _begin(self) -> np.ndarray:
        observation, info = self._look([emulator.reset() for emulator in self._emulators])
        self._lives = int(info["lives"][0])
        return observation[0]

    def _fire_button(self) -> int:
        """The action that only fires; in a game without it, the no-op."""
        known = list(self._emulators[0].ale.get_action_set())
        return known.index(Action.FIRE) if Action.FIRE in known else 0

    def _look(self, answers: list[Any]) -> Any:
        """The result of the game itself, once the one rendered in colour has been read."""
        if len(answers) > 1:
            self._picture = answers[1][0][0, -1]
        return answers[0]


class AleVector(GymnasiumVector):
    """Several games, stepped in parallel. With `life_loss`, a game continues after the loss of a life."""

    def __init__(
        self,
        name: str,
        make: Callable[[], gymnasium.Env],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
        life_loss: bool,
    ):
        super().__init__(name, make, indices, seed, observations, actions)
        rows = len(self._indices)
        self.lives = Lives(np.ones(rows, np.bool_), np.ones(rows, np.bool_)) if life_loss else None

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        if self.lives is not None:
            self.lives.began.fill(False)
        super().step(action, out)
        if self.lives is not None:
            np.logical_or(out.terminated, out.truncated, self.lives.first)

    def _started(self, observation: dict[str, PyTree]) -> None:
        super()._started(observation)
        if self.lives is not None:
            self.lives.first[:] = [game.lived == 0 for game in self._games]

    def _begin(self, row: int) -> None:
        super()._begin(row)
        if self.lives is not None:
            self.lives.began[row] = True

    @property
    def _games(self) -> list[AtariGame]:
        return cast("list[AtariGame]", self.bare)

    def _goes_on(self, row: int) -> bool:
        game = self._games[row]
        if not game.alive or self._clock >= self._deadlines[row]:
            return False
        result = self._try(row, "step", game.next_life)
        if isinstance(result, EnvironmentFault):
            self._fail(row, result)
            return False
        observation, over = result
        if not over:
            self._observations.write_row(self._shown, row, observation)
        return not over

    def _metrics(self, row: int, info: Any) -> dict[str, float]:
        return self._games[row].outcome()

    def _step_each(self, actions: Iterable[Any]) -> Iterable[Any]:
        for game, action in zip(self._games, actions, strict=True):
            game.send(action)
        return map(AtariGame.receive, self._games)


def _rom_of(name: str) -> str:
    """The emulator's name of the game: `ms_pacman` for `MsPacman-v5`."""
    registered = gymnasium.registry.items()  # importing ale-py has registered its games
    known = {id.removeprefix("ALE/"): spec.kwargs["game"] for id, spec in registered if id.startswith("ALE/")}
    if name not in known:
        names = [f"ALE/{game}" for game in known]
        raise UserError(
            f"no Atari game is called 'ALE/{name}'{nearest(f'ALE/{name}', names)}", page="add-an-environment#atari"
        )
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
            raise UserError(f"{name}: setting {key} is {value!r}; expected {wanted}, like {defaults[key]!r}")
    return AleSettings(**settings)
