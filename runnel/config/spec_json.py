"""The spaces of a group of agents as JSON, so that a stored policy can be loaded without its environment.

    {"observation": {"kind": "box", "shape": [4], "dtype": "float32", "low": null, "high": null},
     "action": {"kind": "discrete", "n": 2}, "agents": 1, "names": [], "native": null}

A bound is one number, or a flat list with one number per element; null means no bound. The input may be untrusted: it
is checked, and nothing in it is executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from runnel.errors import UserError
from runnel.types import AgentSpec, Box, Discrete, Leaf, MultiDiscrete, NativeFormat, Space

DTYPES: Final = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "bfloat16",
})  # fmt: skip

MOST_DEEP: Final = 32
MOST_ELEMENTS: Final = 1 << 28
MOST_NAMES: Final = 1 << 20


def to_json(spec: AgentSpec) -> dict[str, Any]:
    return {
        "observation": _space_json(spec.observation),
        "action": _space_json(spec.action),
        "agents": spec.agents,
        "names": list(spec.names),
        "native": None if spec.native is None else _native_json(spec.native),
    }


def from_json(data: Any, where: str) -> AgentSpec:
    """The spec that `to_json` described; `where` names the file in errors."""
    try:
        action = _space(data["action"])
        if not isinstance(action, Leaf):
            raise ValueError("its action is a tree")
        names = tuple(_text(name) for name in data["names"][:MOST_NAMES])
        agents = _count(data["agents"], 1)
        if names and len(names) != agents:
            raise ValueError(f"it names {len(names)} of {agents} agents")
        native = None if data.get("native") is None else _native(data["native"])
        return AgentSpec(_space(data["observation"]), action, agents, names, native)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{where}: its spec is none that Runnel writes ({type(error).__name__}: {str(error)[:80]}); "
            "was the file edited?"
        ) from None


def _space_json(space: Space) -> dict[str, Any]:
    match space:
        case dict():
            return {"kind": "dict", "spaces": {name: _space_json(space[name]) for name in sorted(space)}}
        case tuple():
            return {"kind": "tuple", "spaces": [_space_json(part) for part in space]}
        case Discrete():
            return {"kind": "discrete", "n": space.n, "shape": list(space.shape), "dtype": str(np.dtype(space.dtype))}
        case MultiDiscrete():
            return {"kind": "multi_discrete", "sizes": list(space.sizes), "dtype": str(np.dtype(space.dtype))}
    return {
        "kind": "box",
        "shape": list(space.shape),
        "dtype": str(np.dtype(space.dtype)),
        "low": _bound_json(space.low),
        "high": _bound_json(space.high),
    }


def _space(data: Any, depth: int = 0) -> Space:
    if depth > MOST_DEEP:
        raise ValueError("spaces are nested too deep")
    match data["kind"]:
        case "dict":
            return {_text(name): _space(part, depth + 1) for name, part in data["spaces"].items()}
        case "tuple":
            return tuple(_space(part, depth + 1) for part in data["spaces"])
        case "discrete":
            return Discrete(_count(data["n"], 1), _shape(data["shape"]), _dtype(data["dtype"]))
        case "multi_discrete":
            return MultiDiscrete(tuple(_count(n, 1) for n in data["sizes"]), _dtype(data["dtype"]))
        case "box":
            shape, dtype = _shape(data["shape"]), _dtype(data["dtype"])
            bounds = (_bound(data["low"], -np.inf, shape, dtype), _bound(data["high"], np.inf, shape, dtype))
            return Box(shape, dtype, *bounds)
    raise ValueError(f"there is no space '{str(data['kind'])[:40]}'")


def _native_json(native: NativeFormat) -> dict[str, Any]:
    return {
        "action_shape": list(native.action_shape),
        "action_dtype": str(native.action_dtype),
        "action_start": np.asarray(native.action_start).tolist(),
        "observation_starts": [
            [list(path), np.asarray(start).tolist()] for path, start in native.observation_starts
        ],
    }  # fmt: skip


def _native(data: Mapping[str, Any]) -> NativeFormat:
    shape = _shape(data["action_shape"])
    start = np.broadcast_to(np.asarray(data["action_start"], np.int64), shape)
    starts = tuple(
        (tuple(key if isinstance(key, int) else _text(key) for key in path), np.asarray(start, np.int64))
        for path, start in data["observation_starts"]
    )
    return NativeFormat(shape, _dtype(data["action_dtype"]), start, starts)


def _bound_json(bound: Any) -> Any:
    """One number where all elements have the same bound."""
    flat = np.asarray(bound, np.float64).ravel()
    if flat.size and (flat == flat[0]).all():
        flat = flat[:1]
    numbers = [float(x) if math.isfinite(x) else None for x in flat]
    return numbers[0] if len(numbers) == 1 else numbers


def _bound(data: Any, infinite: float, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    numbers = data if isinstance(data, list) else [data]
    flat = np.array([infinite if x is None else x for x in numbers], np.float64)
    if flat.size == 1:
        flat = np.broadcast_to(flat, math.prod(shape))
    if dtype.kind in "iub":
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        flat = np.clip(flat, *limits)
    with np.errstate(over="ignore"):  # what no number of that type bounds is infinite
        return flat.reshape(shape).astype(dtype)


def _shape(data: Any) -> tuple[int, ...]:
    shape = tuple(_count(n, 0) for n in data)
    if len(shape) > MOST_DEEP or math.prod(shape) > MOST_ELEMENTS:
        raise ValueError(f"an array of shape {str(shape)[:40]}")
    return shape


def _dtype(name: Any) -> np.dtype:
    if name not in DTYPES:
        raise ValueError(f"there is no type '{str(name)[:40]}'")
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _count(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 40:
        raise ValueError(f"found {str(value)[:40]}, expected a whole number of {least} or more")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"found {str(value)[:40]}, expected a text")
    return value
