"""Converts observations and actions between an environment's own format and Runnel's spaces, for stored policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from runnel.errors import UserError
from runnel.observations import PARTS, is_parted, view
from runnel.types import AgentSpec, Array, Box, Discrete, MultiDiscrete, PyTree, Space

REAL: Final = "fiub"
"""Kinds of NumPy types that are real numbers."""


# Observations


def read_rows(spec: AgentSpec, obs: Any, mask: Any = None) -> tuple[PyTree, bool]:
    """Observations with a row for each, in the spec's format, and whether there was a single one."""
    value = without_starts(spec, completed(spec, obs, mask))
    singles: set[bool] = set()

    def read(space: Space, value: Any, called: str) -> PyTree:
        if isinstance(space, dict):
            return {key: read(space[key], _part(value, key, called), f"{called}[{key!r}]") for key in sorted(space)}
        if isinstance(space, tuple):
            return tuple(read(part, _part(value, k, called), f"{called}[{k}]") for k, part in enumerate(space))
        array, single = _read_leaf(space, value, called)
        singles.add(single)
        return array

    found = read(spec.observation, value, "observation")
    if len(singles) > 1:
        raise UserError("found an observation of which some parts are batches and others are not")
    single = True in singles
    return (jax.tree.map(lambda x: x[None], found) if single else found), single


def read_traced(spec: AgentSpec, obs: PyTree) -> PyTree:
    """One observation inside a traced function; its shapes are those of the spec."""

    def read(space: Space, value: Any) -> PyTree:
        if isinstance(space, dict):
            return {name: read(space[name], value[name]) for name in sorted(space)}
        if isinstance(space, tuple):
            return tuple(read(part, value[k]) for k, part in enumerate(space))
        return jnp.asarray(value, space.dtype)

    return read(spec.observation, without_starts(spec, completed(spec, obs)))


def completed(spec: AgentSpec, obs: Any, mask: Any = None) -> Any:
    """An observation with all its parts. Missing parts are filled in: all actions legal, the agent active, a state of
    zeros (which no policy uses)."""
    space = spec.observation
    parts = view(space)
    if mask is not None and parts.action_mask is None:
        raise UserError("found a mask, but this policy was trained without masks; leave it out")
    if not isinstance(space, dict) or not is_parted(space):
        return obs
    given = dict(obs) if isinstance(obs, Mapping) and is_parted({"state": 0, **obs}) else {"observation": obs}
    if mask is not None:
        given["action_mask"] = mask
    leading = _leading_axes(parts.seen, given["observation"])
    for name in PARTS:
        if name in space and name not in given:
            given[name] = np.full((*leading, *space[name].shape), name != "state", space[name].dtype)
    return given


def without_starts(spec: AgentSpec, value: Any) -> Any:
    """Integers, counted from 0."""
    for path, start in spec.native.observation_starts if spec.native is not None else ():
        value = _replaced(value, path, lambda part, start=start: part - start, "observation")
    return value


def _read_leaf(space: Any, value: Any, called: str) -> tuple[np.ndarray, bool]:
    """The array of one leaf, and whether it belongs to a single observation."""
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise UserError(f"{called}: found what is no array ({error}), expected {_words(space)}") from None
    if array.dtype.kind not in REAL:
        raise UserError(f"{called}: found {array.dtype}, expected {_words(space)}")
    if array.dtype.kind == "f" and np.dtype(space.dtype).kind in "iub" and np.any(array != np.rint(array)):
        # Such as a picture that was scaled before: as whole numbers it would be black.
        raise UserError(f"{called}: found fractions, expected {_words(space)}, as the environment gives it")
    single = array.shape == tuple(space.shape)
    if not single and (array.ndim != len(space.shape) + 1 or array.shape[1:] != tuple(space.shape)):
        raise UserError(f"{called}: found shape {array.shape}, expected {_words(space)}, or a batch along a first axis")
    return (array if array.dtype == space.dtype else array.astype(space.dtype)), single


def _words(space: Any) -> str:
    match space:
        case Discrete(n):
            return f"a whole number from 0 to {n - 1}"
        case MultiDiscrete(sizes):
            return f"{len(sizes)} whole numbers"
    return f"{np.dtype(space.dtype)} of shape {tuple(space.shape)}"


def _part(value: Any, key: str | int, called: str) -> Any:
    try:
        return value[key]
    except (KeyError, IndexError, TypeError):
        raise UserError(f"{called}: found no {key!r} in it, expected one") from None


def _leading_axes(space: Space, value: Any) -> tuple[int, ...]:
    """The axes of an observation before those of its space."""
    while isinstance(space, dict | tuple):
        key: Any = min(space) if isinstance(space, dict) else 0
        space, value = space[key], _part(value, key, "observation")
    shape = np.shape(value)
    return tuple(shape[: max(0, len(shape) - len(space.shape))])


def _replaced(value: Any, path: tuple[str | int, ...], change: Callable[[Any], Any], called: str) -> Any:
    if not path:
        try:
            return change(value if hasattr(value, "dtype") else np.asarray(value))
        except (TypeError, ValueError):
            raise UserError(f"{called}: found {type(value).__name__}, expected whole numbers") from None
    inner = _replaced(_part(value, path[0], called), path[1:], change, f"{called}[{path[0]!r}]")
    if isinstance(value, Mapping):
        return {**value, path[0]: inner}
    return tuple(inner if k == path[0] else part for k, part in enumerate(value))


# Actions


def native_actions(spec: AgentSpec, actions: np.ndarray) -> np.ndarray:
    """[B, ...] actions in the environment's own format."""
    native = spec.native
    if native is None:
        return actions
    if isinstance(spec.action, Box):
        clipped = np.clip(actions, spec.action.low, spec.action.high)
        return (np.rint(clipped) if native.action_dtype.kind in "iub" else clipped).astype(native.action_dtype)
    start = np.asarray(native.action_start, native.action_dtype)
    return actions.reshape(-1, *native.action_shape).astype(native.action_dtype) + start


def native_action_traced(spec: AgentSpec, action: Array) -> Array:
    """One action in the environment's own format, inside a traced function. Integers have 32 bits."""
    native = spec.native
    if native is None:
        return action
    if isinstance(spec.action, Box):
        clipped = jnp.clip(action, spec.action.low, spec.action.high)
        return jnp.rint(clipped).astype(jnp.int32) if native.action_dtype.kind in "iub" else clipped
    return action.reshape(native.action_shape) + jnp.asarray(np.asarray(native.action_start, np.int32))
