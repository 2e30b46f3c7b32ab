"""A learner's parameters as named arrays in a safetensors file.

A snapshot holds a learner's whole state except its optimiser, so it includes critics and targets. Names are paths in
the state, `params/actor_critic/torso/0/kernel`; acting uses those below `params`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from runnel.errors import UserError
from runnel.types import PyTree

OPTIMISER_FIELDS: Final = frozenset({"optimiser", "optimizer", "optimiser_state", "optimizer_state", "opt_state"})
"""Fields of a state whose leaves are an optimiser's, as are those of every class of optax."""

_CODES: Final = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F32": np.float32, "F64": np.float64,
}  # fmt: skip


class DamagedParameters(Exception):
    """A file of parameters is not as runs write it; the message says the reason."""


def parameter_leaves(state: PyTree) -> dict[str, Any]:
    """The leaves of a learner's state, or of its type, by name; without those of its optimiser."""
    found: dict[str, Any] = {}
    for path, part in jax.tree_util.tree_leaves_with_path(state, is_leaf=_is_optimiser):
        if _is_optimiser(part) or _name_of(path[0]) in OPTIMISER_FIELDS:
            continue
        found[path_name(path)] = part
    return found


def path_name(path: Sequence[Any]) -> str:
    """A leaf's place in its tree. A slash in a key is written as `%2F`, so that no two leaves share a name."""
    return "/".join(_name_of(key).replace("%", "%25").replace("/", "%2F") for key in path)


def as_numpy(leaf: Any) -> np.ndarray:
    """A leaf's content; random keys as their raw data."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def stored_type(leaf: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type of `as_numpy` of a leaf of this type."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(leaf.shape), np.dtype(leaf.dtype)


def as_leaf(array: np.ndarray, like: Any) -> Any:
    """The inverse of `as_numpy` for a leaf of this type."""
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(like))
    return array


def _is_optimiser(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "optax"


def _name_of(key: Any) -> str:
    return str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))


# Files


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of a safetensors file."""
    return safetensors.numpy.save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def unpack(content: bytes) -> dict[str, np.ndarray]:
    """The arrays in the content of a safetensors file; raises `DamagedParameters`. They share the content's memory."""
    try:
        found = safetensors.deserialize(content)
        arrays = {}
        for name, tensor in sorted(found, key=lambda each: each[0]):  # it lists them in any order
            dtype = np.dtype(_CODES[tensor["dtype"]])
            arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
        return arrays
    except KeyError as error:
        raise DamagedParameters(f"it holds arrays of type {error.args[0]}") from None
    except (safetensors.SafetensorError, ValueError, TypeError) as error:
        raise DamagedParameters(str(error).splitlines()[0][:120]) from None


def check_fit(arrays: Mapping[str, np.ndarray], wanted: Mapping[str, Any], where: str) -> None:
    """Refuses parameters that are not of the types of `expected`, whose names may be some of those in `arrays`."""
    for name, leaf in wanted.items():
        shape, dtype = stored_type(leaf)
        if name not in arrays:
            raise UserError(
                f"{where} has no {name}; it was written by another algorithm or with other settings",
                page="run-directory#resume",
            )
        found = arrays[name]
        if found.shape != shape or found.dtype != dtype:
            raise UserError(
                f"{where}: {name} is {found.dtype}{list(found.shape)}, expected {dtype}{list(shape)}; "
                "it was written with other settings, or for another environment",
                page="run-directory#resume",
            )
