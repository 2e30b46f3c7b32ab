"""Converts Gymnasium's spaces to Runnel's, and values between the two.

Every adapter whose environments describe themselves with `gymnasium.spaces` uses this; it imports no JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from runnel.errors import UserError
from runnel.types import Box, Discrete, Leaf, MultiDiscrete, NativeFormat, PyTree, Space, zeros

REAL = "fiub"
"""Kinds of NumPy types that are real numbers. Casting to one of them drops the imaginary part of others, silently."""

LARGEST = {np.dtype(real): float(np.finfo(real).max) for real in (np.float32, np.float64)}
"""The largest finite number of the types in which rewards are kept."""

SMALL = 256
"""The number of elements up to which one assignment of all rows (two copies) is faster than one per row."""

OWN = ", in a function of your own, and name that: `package.module:callable`"
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"


class Observations(NamedTuple):
    """Stores observations of one environment family in trees of arrays, one row per environment.

    `write(rows, values)` copies one observation per environment into rows 0, 1, ..., and returns a copy of them that
    the vector can keep; `write_row(rows, row, value)` copies one. Both raise, before they write, if a value does not
    fit or contains a NaN; `misfit` and `has_nan` distinguish the two.
    """

    space: Space
    write: Callable[[PyTree, Sequence[Any]], PyTree]
    write_row: Callable[[PyTree, int, Any], None]
    copy: Callable[[PyTree, PyTree], None]  # (to, rows): all rows
    copy_row: Callable[[PyTree, PyTree, int], None]  # (to, rows, row)
    misfit: Callable[[Any], str]  # what is wrong with a value's structure, shape or type, in words; or ""
    has_nan: Callable[[Any], bool]  # whether a value that fits holds a NaN


class Actions(NamedTuple):
    """The action space of a group; `unpack(rows)` yields each environment's action in the environment's own format."""

    space: Leaf
    unpack: Callable[[np.ndarray], Iterable[Any]]


_Functions = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class _Part(NamedTuple):
    """One leaf of an observation: its place in the tree, its type, and its offset."""

    path: tuple[str | int, ...]
    leaf: Leaf
    start: Any  # None, or the least value of a (Multi)Discrete that does not begin at 0

    def array(self, tree: PyTree) -> Any:
        for key in self.path:
            tree = tree[key]
        return tree

    def number(self, value: Any) -> Any:
        value = self.array(value)
        return value if self.start is None else np.subtract(value, self.start)

    def misfit(self, value: Any) -> str:
        """Describes the misfit of this part of an observation; empty if it fits."""
        try:
            found = np.asarray(self.number(value))
        except Exception as problem:  # not the tree it should be, or no array: anything can be in there
            return f"{self._name} that is not of its observation_space ({type(problem).__name__}: {problem})"
        if found.shape != self.leaf.shape:
            return f"{self._name} of shape {found.shape}, its observation_space expects {self.leaf.shape}"
        if found.dtype.kind not in REAL:
            return f"{self._name} of {found.dtype}, its observation_space expects {self.leaf.dtype}"
        return ""

    @property
    def _name(self) -> str:
        return " ".join(["an observation", *map(repr, self.path)])

    def has_nan(self, value: Any) -> bool:
        return has_nan(np.asarray(self.number(value)))


def observations(space: spaces.Space, name: str) -> Observations:
    """Reads the observation space of the environment called `name`."""
    described = _observation_space(space, name)
    parts = _parts(space, described)

    def misfit(value: Any) -> str:
        return next(filter(None, (part.misfit(value) for part in parts)), "")

    def nan_in(value: Any) -> bool:
        return any(part.has_nan(value) for part in parts)

    plain = len(parts) == 1 and parts[0].path == () and parts[0].start is None
    kept = _of_array(parts[0].leaf) if plain else _of_tree(described, parts)
    return Observations(described, *kept, misfit, nan_in)


def _of_tree(described: Space, parts: Sequence[_Part]) -> _Functions:
    """`write`, `write_row`, `copy` and `copy_row` of any observation."""

    def write(rows: PyTree, values: Sequence[Any]) -> PyTree:
        kept = zeros(described, len(values))
        for row, value in enumerate(values):
            write_row(kept, row, value)
        copy(rows, kept)
        return kept

    def write_row(rows: PyTree, row: int, value: Any) -> None:
        checked = [_checked(part.number(value), part.leaf.shape, part.leaf.dtype) for part in parts]
        for part, number in zip(parts, checked, strict=True):
            part.array(rows)[row] = number

    def copy(to: PyTree, rows: PyTree) -> None:
        for part in parts:
            part.array(to)[...] = part.array(rows)

    def copy_row(to: PyTree, rows: PyTree, row: int) -> None:
        for part in parts:
            part.array(to)[row] = part.array(rows)[row]

    return write, write_row, copy, copy_row


def _of_array(leaf: Leaf) -> _Functions:
    """The functions for an observation that is a single array, as most are: faster."""
    shape, dtype = leaf.shape, leaf.dtype

    def write_small(rows: np.ndarray, values: Sequence[Any]) -> np.ndarray:
        kept = _checked(np.array(values), rows.shape, dtype)  # raises where their shapes differ
        rows[...] = kept
        return kept

    def write(rows: np.ndarray, values: Sequence[Any]) -> np.ndarray:
        kept = np.empty(rows.shape, dtype)
        for row, value in enumerate(values):
            kept[row] = _checked(value, shape, dtype)
        rows[...] = kept
        return kept

    def write_row(rows: np.ndarray, row: int, value: Any) -> None:
        rows[row] = _checked(value, shape, dtype)

    def copy(to: np.ndarray, rows: np.ndarray) -> None:
        to[...] = rows

    def copy_row(to: np.ndarray, rows: np.ndarray, row: int) -> None:
        to[row] = rows[row]

    return write_small if np.prod(shape) <= SMALL else write, write_row, copy, copy_row


def _checked(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The value as an array; raises ValueError for another shape, which NumPy would broadcast silently."""
    array = np.asarray(value)
    kind = array.dtype.kind
    if array.shape != shape or kind not in REAL or (kind == "f" and has_nan(array)):
        raise ValueError
    return array if array.dtype == dtype else array.astype(dtype)


def has_nan(array: np.ndarray) -> bool:
    """Whether the array contains NaN; four times as fast as `np.isnan(array).any()` on a small array."""
    if array.dtype.kind != "f" or not array.size:
        return False
    largest = array.item(array.argmax())  # NaN counts as the largest
    return largest != largest


def are_rewards(given: np.ndarray, rows: np.ndarray) -> bool:
    """Whether each row is given one real number that is finite in the rows' own type: 1e300 is not, as float32."""
    if given.shape != rows.shape or given.dtype.kind not in REAL:
        return False
    limit = LARGEST[rows.dtype]
    return -limit <= given.item(given.argmin()) and given.item(given.argmax()) <= limit  # NaN is neither


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
        f"MultiBinary. Wrap it in gymnasium.wrappers.TransformAction{OWN}",
        page="add-an-environment#your-own-from-gymnasium",
    )


def native_format(observation: spaces.Space, action: spaces.Space, name: str) -> NativeFormat:
    """The native format of the environment called `name`, from which `observations` and `actions` convert."""
    starts = _parts(observation, _observation_space(observation, name))
    shape, start = action.shape or (), np.asarray(getattr(action, "start", 0))
    return NativeFormat(
        tuple(shape), np.dtype(action.dtype), start, tuple((p.path, p.start) for p in starts if p.start is not None)
    )


def _unpack_integers(shape: tuple[int, ...], dtype: Any, start: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Returns NumPy scalars and rows, like the space's own `sample`: `contains` is slower on plain ints."""
    dtype = np.dtype(dtype)
    start = np.asarray(start, dtype)

    def unpack(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(-1, *shape).astype(dtype) + start

    def unpack_from_zero(rows: np.ndarray) -> np.ndarray:
        return rows.astype(dtype)

    return unpack_from_zero if len(shape) < 2 and not start.any() else unpack


def _unpack_reals(space: spaces.Box) -> Callable[[np.ndarray], Iterable[Any]]:
    """Clips to the bounds in the adapter: the trajectory keeps the policy's action."""
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
                raise UserError(f"{name}: found a key {odd[0]!r} in its observation, expected strings; rename it")
            return {key: _observation_space(space.spaces[key], name) for key in sorted(space.spaces)}
        case spaces.Tuple():
            return tuple(_observation_space(part, name) for part in space.spaces)
    raise UserError(
        f"{name}: its observation space has {_words(space)}; Runnel knows {SUPPORTED}. "
        f"Wrap it in gymnasium.wrappers.TransformObservation{OWN}",
        page="add-an-environment#your-own-from-gymnasium",
    )


def _box(space: spaces.Box, name: str) -> Box:
    dtype = np.dtype(space.dtype)
    if dtype.kind not in REAL:
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


def _parts(space: spaces.Space, described: Any, path: tuple[str | int, ...] = ()) -> list[_Part]:
    match space:
        case spaces.Dict():
            keys = sorted(space.spaces)
            return [leaf for key in keys for leaf in _parts(space.spaces[key], described[key], (*path, key))]
        case spaces.Tuple():
            inner = enumerate(zip(space.spaces, described, strict=True))
            return [leaf for key, (part, of) in inner for leaf in _parts(part, of, (*path, key))]
        case spaces.Discrete() | spaces.MultiDiscrete() if np.any(space.start):
            return [_Part(path, described, space.start)]
    return [_Part(path, described, None)]


def _words(space: spaces.Space) -> str:
    kind = type(space).__name__
    return ("an " if kind[0] in "AEIOU" else "a ") + kind
