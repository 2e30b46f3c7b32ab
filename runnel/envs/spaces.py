"""Gymnasium's spaces in Runnel's words, and the values of the one as values of the other.

Every adapter whose environments describe themselves with `gymnasium.spaces` uses this; it imports no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from runnel.errors import UserError
from runnel.types import Box, Discrete, Leaf, MultiDiscrete, PyTree, Space

SMALL = 256
"""Up to so many elements, one assignment of all rows (it copies twice) is faster than one a row."""

OWN = ", in a function of your own, and name that: `package.module:callable`"
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"


class Observations(NamedTuple):
    """How a vector keeps the observations of one environment family.

    `write(rows, values)` copies one observation an environment into rows 0, 1, ... of the tree of arrays
    `rows`; `write_row(rows, row, value)` copies one.
    """

    space: Space
    write: Callable[[PyTree, Sequence[Any]], None]
    write_row: Callable[[PyTree, int, Any], None]


class Actions(NamedTuple):
    """How a vector acts: `unpack(rows)` gives each environment's action as that environment wants it."""

    space: Leaf
    unpack: Callable[[np.ndarray], Iterable[Any]]


class _Part(NamedTuple):
    """One leaf of an observation: where it lies in the tree, and what to take off it."""

    path: tuple[str | int, ...]
    start: Any  # None, or the least value of a (Multi)Discrete that does not begin at 0

    def array(self, tree: PyTree) -> Any:
        for key in self.path:
            tree = tree[key]
        return tree

    def number(self, value: Any) -> Any:
        value = self.array(value)
        return value if self.start is None else np.subtract(value, self.start)


def observations(space: spaces.Space, name: str) -> Observations:
    """Reads the observation space of the environment called `name`."""
    described = _observation_space(space, name)
    parts = _parts(space)

    def write_row(rows: PyTree, row: int, value: Any) -> None:
        for part in parts:
            part.array(rows)[row] = part.number(value)

    def write(rows: PyTree, values: Sequence[Any]) -> None:
        for row, value in enumerate(values):
            write_row(rows, row, value)

    def write_small(rows: np.ndarray, values: Sequence[Any]) -> None:
        rows[:] = values

    plain = len(parts) == 1 and parts[0].path == () and parts[0].start is None
    small = plain and np.prod(space.shape or ()) <= SMALL
    return Observations(described, write_small if small else write, write_row)


def actions(space: spaces.Space, name: str) -> Actions:
    """Reads the action space of the environment called `name`."""
    match space:
        case spaces.Discrete():
            return Actions(Discrete(int(space.n)), _unpack_integers((), space.dtype, space.start))
        case spaces.MultiDiscrete():
            sizes = tuple(int(n) for n in space.nvec.flat)
            return Actions(MultiDiscrete(sizes), _unpack_integers(space.shape, space.dtype, space.start))
        case spaces.MultiBinary():
            sizes = (2,) * int(np.prod(space.shape))
            return Actions(MultiDiscrete(sizes), _unpack_integers(space.shape, space.dtype, 0))
        case spaces.Box():
            low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
            return Actions(Box(space.shape, np.dtype(np.float32), low, high), _unpack_reals(space))
    raise UserError(
        f"{name}: its action space is {_words(space)}; Runnel acts in one Box, Discrete, MultiDiscrete or "
        f"MultiBinary. Wrap it in gymnasium.wrappers.TransformAction{OWN}"
    )


def _unpack_integers(shape: tuple[int, ...], dtype: Any, start: Any) -> Callable[[np.ndarray], np.ndarray]:
    """NumPy scalars and rows, as the space's own `sample` gives: `contains` is slower on plain ints."""
    dtype = np.dtype(dtype)
    start = np.asarray(start, dtype)

    def unpack(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *shape).astype(dtype) + start

    def unpack_from_zero(rows: np.ndarray) -> np.ndarray:
        return rows.astype(dtype)

    return unpack_from_zero if len(shape) < 2 and not start.any() else unpack


def _unpack_reals(space: spaces.Box) -> Callable[[np.ndarray], Iterable[Any]]:
    """Clips to the bounds here, at the environment's door: the trajectory keeps what the policy did."""
    whole = not np.issubdtype(space.dtype, np.floating)
    low, high = (bound.astype(np.float64) if whole else bound for bound in (space.low, space.high))

    def unpack(rows: np.ndarray) -> Iterable[Any]:
        clipped = np.minimum(np.maximum(rows, low), high)
        own = (np.rint(clipped) if whole else clipped).astype(space.dtype, copy=False)
        return own if space.shape else [np.asarray(one) for one in own]  # iterating would give plain scalars

    return unpack


def _observation_space(space: spaces.Space, name: str) -> Space:
    match space:
        case spaces.Box():
            return _box(space, name)
        case spaces.Discrete():
            return Discrete(int(space.n))
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return MultiDiscrete(tuple(int(n) for n in space.nvec))
        case spaces.MultiDiscrete():
            return Box(space.shape, np.dtype(np.int32), np.int32(0), (space.nvec - 1).astype(np.int32))
        case spaces.MultiBinary():
            return Box(space.shape, np.dtype(np.int8), np.int8(0), np.int8(1))
        case spaces.Dict():
            if odd := [key for key in space.spaces if not isinstance(key, str)]:
                raise UserError(f"{name}: its observation has a key {odd[0]!r}; Runnel wants strings as keys")
            return {key: _observation_space(space.spaces[key], name) for key in sorted(space.spaces)}
        case spaces.Tuple():
            return tuple(_observation_space(part, name) for part in space.spaces)
    raise UserError(
        f"{name}: its observation space has {_words(space)}; Runnel knows {SUPPORTED}. "
        f"Wrap it in gymnasium.wrappers.TransformObservation{OWN}"
    )


def _box(space: spaces.Box, name: str) -> Box:
    dtype = np.dtype(space.dtype)
    if dtype.kind not in "fiub":
        raise UserError(f"{name}: its observation is of {dtype}; Runnel knows reals, integers and booleans")
    if dtype in (np.int64, np.uint64):
        # JAX has 32 bits. Where the values do not fit, rounding is better than wrapping round.
        small = np.dtype(np.int32 if dtype == np.int64 else np.uint32)
        limits = np.iinfo(small)
        fits = space.low.min(initial=0) >= limits.min and space.high.max(initial=0) <= limits.max
        dtype = small if fits else np.dtype(np.float32)
    elif dtype.kind == "f" and dtype.itemsize > 4:
        dtype = np.dtype(np.float32)
    with np.errstate(over="ignore"):  # a float64 bound may be infinite as a float32
        return Box(space.shape, dtype, space.low.astype(dtype), space.high.astype(dtype))


def _parts(space: spaces.Space, path: tuple[str | int, ...] = ()) -> list[_Part]:
    match space:
        case spaces.Dict():
            return [leaf for key in sorted(space.spaces) for leaf in _parts(space.spaces[key], (*path, key))]
        case spaces.Tuple():
            return [leaf for key, part in enumerate(space.spaces) for leaf in _parts(part, (*path, key))]
        case spaces.Discrete() | spaces.MultiDiscrete() if np.any(space.start):
            return [_Part(path, space.start)]
    return [_Part(path, None)]


def _words(space: spaces.Space) -> str:
    kind = type(space).__name__
    return ("an " if kind[0] in "AEIOU" else "a ") + kind
