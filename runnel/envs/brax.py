"""Brax's environments (0.14), as single environments that only the runtime resets.

Episodes have Brax's usual limit of 1,000 steps (`episode_length`), which is a truncation; the environment's own `done`
is a termination. Every episode begins from a new state. Brax itself returns to an environment's first state, because
resets are expensive; here one is computed beside each step, which costs less than the step itself.

`backend` chooses the physics: `generalized`, Brax's default and the one here; `spring`, which is quicker and the least
exact; `positional`; `mjx`. Returns are to be compared within one backend only.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import metadata
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.errors import UserError, nearest
from runnel.ops.env_metrics import scalars
from runnel.ops.state_dtypes import StateTypes
from runnel.types import Array, Box, EnvSpec, PyTree

PICTURE_SIDE = 480
"""Pixels."""


class State(NamedTuple):
    """An episode in progress."""

    inner: PyTree  # Brax's own
    time: Array  # [] steps taken


class BraxEnvironment:
    """One Brax environment as pure functions: `BraxEnvironment("ant", backend="spring")`."""

    def __init__(self, name: str, /, *, episode_length: int = 1000, **settings: Any):
        """`settings` are arguments of the environment's constructor; `backend` is one of them."""
        self._title = f"brax:{name}"
        self._limit = episode_length
        with _scope():
            self._environment = _make(self._title, name, settings)
        try:
            size = self._environment.action_size
            self._action = Box((size,), np.dtype(np.float32), np.float32(-1), np.float32(1))
            self._types = StateTypes(self._reset, lambda inner, action, _: self._step(inner, action), self._action)
            inner = jax.eval_shape(lambda key: self._types.cast(self._reset(key)), jax.eval_shape(jax.random.key, 0))
        except Exception as problem:  # an environment may raise anything while it is traced
            raise UserError(
                f"{self._title} does not work with {_versions()}, settings {settings}: {problem}. "
                "Another backend may: generalized, spring or positional"
            ) from problem
        observation = jax.tree.map(lambda leaf: Box(leaf.shape, np.dtype(np.float32)), inner.obs)
        self.spec = EnvSpec.single(self._title, observation, self._action, episode_length)

    def reset(self, key: Array) -> tuple[State, PyTree]:
        inner = self._types.cast(self._reset(key))
        return State(inner, jnp.zeros((), jnp.int32)), _observed(inner)

    def step(self, state: State, action: Array, key: Array) -> tuple[State, TimeStep]:
        inner = self._types.cast(self._step(state.inner, action))
        time = state.time + 1
        terminated = jnp.asarray(inner.done, jnp.bool)
        truncated = (time >= self._limit) & ~terminated
        reward = jnp.asarray(inner.reward, jnp.result_type(float))
        return State(inner, time), TimeStep(_observed(inner), reward, terminated, truncated, scalars(inner.metrics))

    def render(self, state: State) -> np.ndarray:
        """[H, W, 3] uint8: a picture of one state."""
        from brax.io import image

        system, pose = self._environment.sys, jax.device_get(state.inner.pipeline_state)
        try:
            return np.asarray(image.render_array(system, pose, PICTURE_SIDE, PICTURE_SIDE), np.uint8)
        except Exception as problem:  # MuJoCo passes on any exception of its OpenGL
            raise UserError(
                f"{self._title} cannot be rendered: MuJoCo's renderer reports '{problem}'. "
                "Where there is no display, set MUJOCO_GL=egl"
            ) from problem

    def _reset(self, key: Array) -> Any:
        with _scope():
            return self._environment.reset(key)

    def _step(self, inner: Any, action: Array) -> Any:
        """Brax's own step, with the action inside its bounds: the trajectory keeps what the policy did."""
        with _scope():
            # Brax writes into the dicts of the state it is given.
            inner = inner.replace(metrics=dict(inner.metrics), info=dict(inner.info))
            return self._environment.step(inner, jnp.clip(action, -1, 1))


def _observed(inner: Any) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), inner.obs)


def _make(title: str, name: str, settings: dict[str, Any]) -> Any:
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):  # MJX prints what it could not import
        from brax import envs
    known = envs._envs  # nothing public lists them
    if name not in known:
        raise UserError(f"no Brax environment is called '{name}'{nearest(name, known)}", page="add-an-environment#brax")
    try:
        return envs.get_environment(name, **settings)
    except (TypeError, ValueError) as problem:
        given = " ".join(f"{key}={value}" for key, value in settings.items())
        wanted = str(problem).replace("dict_keys([", "").replace("])", "")
        raise UserError(f"{title} cannot be made with {given}: {wanted}") from problem


def _versions() -> str:
    return ", ".join(f"{package} {metadata.version(package)}" for package in ("brax", "mujoco-mjx", "jax"))


@contextmanager
def _scope() -> Iterator[None]:
    """The context in which Brax is traced, without its warnings and with 32-bit systems."""
    with warnings.catch_warnings(), jax.enable_x64(False):
        warnings.simplefilter("ignore")
        yield
