"""gymnax environments, 0.0.9 and 1.x, as single environments that only the runtime resets.

gymnax takes seconds to import, so it is imported when one of its environments is created.

The end at `max_steps_in_episode` is classified here, because 0.0.9 returns `done` there without a reason:

| environments | the end at the limit is | because |
|---|---|---|
| CartPole, Pendulum, Acrobot, MountainCar(Continuous) | truncation | it is around the task, as in Gymnasium |
| Asterix, Breakout, Freeway, Seaquest, SpaceInvaders, Pong | truncation | the agent cannot see the clock |
| FourRooms, FrozenLake, Reacher, Swimmer | truncation | the agent cannot see the clock |
| Catch, DeepSea, MemoryChain, UmbrellaChain | truncation | a safety net: they terminate before it, or at it |
| SimpleBandit, MNISTBandit | never reached | every step is the last one, a termination |
| DiscountingChain | termination | the chain is that long; the agent sees time / limit |
| BernoulliBandit, GaussianBandit, MetaMaze, PointRobot | termination | the horizon is the task, and seen |
| any other (registered by the user) | truncation | as in 1.x |
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.errors import NotInstalled, UserError, nearest
from runnel.ops.env_metrics import scalars
from runnel.types import Array, Box, Discrete, EnvSpec, Leaf, PyTree, Space, space_map

LIMIT_IS_THE_END = frozenset(
    {
        "DiscountingChain-bsuite",
        "BernoulliBandit-misc",
        "GaussianBandit-misc",
        "MetaMaze-misc",
        "PointRobot-misc",
    }
)

UNLIMITED = 2**31 - 1

CLASSIC = {
    "CartPole-v1": ("x", "x_dot", "theta", "theta_dot"),
    "Pendulum-v1": ("theta", "theta_dot"),
    "Acrobot-v1": ("joint_angle1", "joint_angle2", "velocity_1", "velocity_2"),
    "MountainCar-v0": ("position", "velocity"),
    "MountainCarContinuous-v0": ("position", "velocity"),
}
"""The fields of gymnax's state that make up Gymnasium's."""

PICTURE_SIDE = 400
"""Pixels, about, along the longer side of a grid."""

# One colour a channel, the first ten of Tableau's: far apart for any eyes.
COLOURS = np.array(
    [
        (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189),
        (140, 86, 75), (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
    ],
    np.uint8,
)  # fmt: skip


class _Types(NamedTuple):
    """The dtypes of an environment's arrays under one setting of `jax_enable_x64`."""

    state: PyTree  # of dtypes, which neither `reset` nor `step` leaves
    action: np.dtype  # what `step_env` is given


class GymnaxEnvironment:
    """One gymnax environment as pure functions: `GymnaxEnvironment("CartPole-v1", gravity=1.6)`."""

    def __init__(self, name: str, /, **settings: Any):
        """`settings` are fields of the environment's parameters, or arguments of its constructor."""
        self._title = f"gymnax:{name}"
        self._environment, self._params = _make(name, settings)
        self._tells_truncation = hasattr(self._environment, "is_truncated")  # 1.x
        self._limit_is_the_end = name in LIMIT_IS_THE_END
        self._limit = int(self._params.max_steps_in_episode)
        self._step_params = self._params
        if not self._tells_truncation and not self._limit_is_the_end:
            self._step_params = self._params.replace(max_steps_in_episode=UNLIMITED)
        self._action_space = self._environment.action_space(self._params)
        self._types_by_x64: dict[bool, _Types] = {}
        self._action = _action_spec(self._title, self._action_space)
        observation = self._observation_spec()
        self._observation_types = space_map(lambda leaf: leaf.dtype, observation)
        self.spec = EnvSpec.single(self._title, observation, self._action, self._limit)

    def reset(self, key: Array) -> tuple[PyTree, PyTree]:
        types = self._types()
        observation, state = self._reset_env(key)
        return _cast(state, types.state), _cast(observation, self._observation_types)

    def step(self, state: PyTree, action: Array, key: Array) -> tuple[PyTree, TimeStep]:
        types = self._types()
        observation, state, reward, done, info = self._step_env(state, action, key, types.action)
        if self._tells_truncation:
            at_limit = self._environment.is_truncated(state, self._params)
        else:
            at_limit = state.time >= self._limit
        terminated = jnp.asarray(done, jnp.bool)
        if self._limit_is_the_end:
            terminated |= at_limit
        truncated = at_limit & ~terminated
        observation = _cast(observation, self._observation_types)
        reward = jnp.asarray(reward, jnp.result_type(float))
        metrics = scalars({name: value for name, value in info.items() if name != "discount"})
        return _cast(state, types.state), TimeStep(observation, reward, terminated, truncated, metrics)

    def render(self, state: PyTree) -> np.ndarray:
        """[H, W, 3] uint8: a picture of one state."""
        name = self._title.removeprefix("gymnax:")
        if name in CLASSIC:
            return _draw_classic(name, state)
        grid = np.asarray(self._observe(state))
        if grid.ndim not in (2, 3):
            raise UserError(f"{self._title} cannot be rendered: its observation is no grid (shape {grid.shape})")
        return _draw_grid(grid)

    @cached_property
    def _observe(self) -> Callable[[PyTree], Array]:
        def observe(state: PyTree) -> Array:
            with _quiet():
                return self._environment.get_obs(state, params=self._params, key=jax.random.key(0))

        return jax.jit(observe)

    def _step_env(self, state: PyTree, action: Array, key: Array, dtype: np.dtype) -> Any:
        """gymnax's own step, with the action inside its bounds: the trajectory keeps what the policy did."""
        action = jnp.asarray(action)
        if isinstance(self._action, Box):
            action = jnp.clip(action, self._action.low, self._action.high)
        with _quiet():
            return self._environment.step_env(key, state, action.astype(dtype), self._step_params)

    def _reset_env(self, key: Array) -> Any:
        with _quiet():
            return self._environment.reset_env(key, self._params)

    def _types(self) -> _Types:
        x64 = _x64()
        if x64 not in self._types_by_x64:
            self._types_by_x64[x64] = self._settle()
        return self._types_by_x64[x64]

    def _settle(self) -> _Types:
        """Finds dtypes that `reset` and `step` can share, so that a scan can carry the state.

        gymnax resets `time` to a Python 0 and steps it to an array, adds booleans to integers, and selects between the
        action and 32-bit or 64-bit state, each environment in its own way.
        """
        problem: Exception | None = None
        discrete = isinstance(self._action, Discrete)
        wanted = (self._action_space.dtype, np.int32, np.int64) if discrete else (np.float32,)
        for action_dtype in dict.fromkeys(jax.dtypes.canonicalize_dtype(dtype) for dtype in wanted):
            try:
                return _Types(self._settle_state(action_dtype), action_dtype)
            except Exception as error:  # an environment may raise anything while it is traced
                problem = problem or error
        raise UserError(
            f"{self._title} does not work with gymnax {metadata.version('gymnax')}"
            f"{' under jax_enable_x64' if _x64() else ''}: {_first_line(problem)}"
        ) from problem

    def _settle_state(self, action_dtype: np.dtype) -> PyTree:
        key = jax.eval_shape(jax.random.key, 0)
        action = jax.ShapeDtypeStruct(self._action.shape, self._action.dtype)
        step_env = partial(self._step_env, dtype=action_dtype)
        _, state = jax.eval_shape(self._reset_env, key)
        before = None
        while True:  # promotion only widens, so this ends
            dtypes = jax.tree.map(lambda leaf: leaf.dtype, state)
            if dtypes == before:
                return dtypes
            before = dtypes
            strong = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
            _, stepped, *_ = jax.eval_shape(step_env, strong, action, key)
            state = jax.tree.map(_widest, strong, stepped)

    def _observation_spec(self) -> Space:
        self._types()  # raises in words where gymnax cannot be traced
        observation, _ = jax.eval_shape(self._reset_env, jax.eval_shape(jax.random.key, 0))
        if self._title.endswith("-MinAtar"):
            # Zeros and ones, which gymnax gives as floats: as flags they take a quarter of the memory to move.
            return Box(observation.shape, np.dtype(np.bool_), 0, 1)
        return _observation_space(self._environment.observation_space(self._params), observation)


def _make(name: str, settings: dict[str, Any]) -> tuple[Any, Any]:
    params: Any
    try:
        import gymnax
    except ImportError as problem:
        raise NotInstalled(f"gymnax:{name}", f"'{problem.name}'", "gymnax") from problem
    if name not in gymnax.registered_envs:
        raise UserError(
            f"no gymnax environment is called '{name}'{nearest(name, gymnax.registered_envs)}",
            page="add-an-environment#gymnax",
        )
    try:
        with _quiet():
            environment, params = gymnax.make(name)
        fields = {field.name for field in dataclasses.fields(params)}
        arguments = {key: value for key, value in settings.items() if key not in fields}
        if arguments:
            _check_settings(name, arguments, fields, type(environment))
            environment, params = gymnax.make(name, **arguments)
    except (OSError, NotImplementedError) as problem:  # MNISTBandit loads its pictures from the network
        raise UserError(f"gymnax cannot make '{name}': {_first_line(problem)}") from problem
    overrides = {key: _like(name, key, getattr(params, key), value) for key, value in settings.items() if key in fields}
    return environment, params.replace(**overrides)


def _check_settings(name: str, arguments: dict[str, Any], fields: set[str], kind: type) -> None:
    known = {p.name for p in inspect.signature(kind).parameters.values() if p.kind is not p.VAR_KEYWORD}
    for key in arguments:
        if key not in known:
            raise UserError(f"gymnax:{name} has no setting '{key}'{nearest(key, known | fields)}")


def _like(name: str, key: str, default: Any, value: Any) -> Any:
    """A setting as the type of its default: an integer for a real would change the state's types."""
    try:
        if isinstance(default, bool | int | float):
            if isinstance(value, str) or (isinstance(default, int) and value != int(value)):
                raise TypeError
            return type(default)(value)
        return jnp.asarray(value, default.dtype).reshape(default.shape)
    except (TypeError, ValueError) as problem:
        raise UserError(
            f"gymnax:{name}: setting {key} is {value!r}; expected a {type(default).__name__}, like {default!r}"
        ) from problem


def _action_spec(name: str, space: Any) -> Leaf:
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "low"):
        low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
        return Box(tuple(space.shape), np.dtype(np.float32), low, high)
    raise UserError(f"{name}: its action space is a {type(space).__name__}; Runnel acts in one Box or Discrete")


def _observation_space(space: Any, observation: PyTree) -> Space:
    """The space of an observation. Shapes and types are the array's: gymnax's spaces are not exact."""
    if isinstance(observation, dict):
        return {key: _observation_space(space.spaces[key], observation[key]) for key in sorted(observation)}
    if isinstance(observation, tuple):
        return tuple(_observation_space(part, value) for part, value in zip(space.spaces, observation, strict=True))
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    dtype = np.dtype(observation.dtype)
    if dtype.kind == "f" or (dtype.kind in "iu" and jnp.issubdtype(space.dtype, jnp.floating)):
        dtype = np.dtype(np.float32)
    elif dtype.itemsize > 4:
        dtype = np.dtype(dtype.kind + "4")
    low, high = (np.asarray(bound).astype(dtype) for bound in (space.low, space.high))
    return Box(tuple(observation.shape), dtype, low, high)


def _widest(a: jax.ShapeDtypeStruct, b: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, jnp.promote_types(a.dtype, b.dtype))


def _x64() -> bool:
    return jnp.result_type(float) == np.float64


def _cast(tree: PyTree, dtypes: PyTree) -> PyTree:
    """Removes weak types from every leaf: a weak type would change in a scan."""
    return jax.tree.map(lambda leaf, dtype: jnp.asarray(leaf, dtype), tree, dtypes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences JAX's warnings about dtypes that gymnax mixes, at every trace, which its user cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        yield


def _first_line(problem: Exception | None) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else type(problem).__name__


# Pictures


def _draw_grid(grid: np.ndarray) -> np.ndarray:
    """[H, W, 3] from `[rows, columns, (channels)]`: each cell in the colour of its last filled channel."""
    channels = grid.reshape(*grid.shape[:2], -1) > 0
    cells = np.zeros((*grid.shape[:2], 3), np.uint8)
    for channel in range(channels.shape[-1]):
        cells[channels[..., channel]] = COLOURS[channel % len(COLOURS)]
    scale = max(1, PICTURE_SIDE // max(grid.shape[:2]))
    return cells.repeat(scale, axis=0).repeat(scale, axis=1)


def _draw_classic(name: str, state: Any) -> np.ndarray:
    from gymnasium.error import DependencyNotInstalled

    drawing = _drawing(name)
    drawing.state = np.array([getattr(state, field) for field in CLASSIC[name]], np.float64)
    if name == "Pendulum-v1":
        drawing.last_u = float(state.last_u)
    try:
        return np.asarray(drawing.render(), np.uint8)
    except DependencyNotInstalled as problem:
        raise NotInstalled(f"drawing {name}", "pygame", "classic") from problem


@cache
def _drawing(name: str) -> Any:
    """One Gymnasium environment of the same name, used for rendering only."""
    import gymnasium

    environment = gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True).unwrapped
    environment.reset(seed=0)
    return environment
