"""Named arrays in a checkpoint, written with orbax, and read from untrusted files.

The metadata of files is checked before any array is read: a file of a few bytes can declare any size, and another kind
of store can name any path of the machine.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runnel.errors import UserError
from runnel.recording.checkpoint_directory import CheckpointDirectory, Unreadable
from runnel.recording.files import one_line
from runnel.system.platform import memory_bytes
from runnel.types import PyTree

ANY_BYTES, MOST_PACKED = 1 << 26, 1024
"""The size of unexpected arrays, in absolute terms or relative to their files, up to which they are read."""


# Trees as named arrays


def leaf_name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def named_leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by their path; random keys as their raw data."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        named[leaf_name(path)] = np.asarray(jax.device_get(leaf))
    return named


def check_types(named: Mapping[str, Any], like: PyTree, where: Path) -> None:
    """Refuses arrays, or the types of arrays, that differ from those of `like`."""

    def check(path: Any, expected: Any) -> None:
        name = leaf_name(path)
        if name not in named:
            raise UserError(
                f"{where} has no {name}; it was written by another algorithm or with other settings",
                page="run-directory#resume",
            )
        found = named[name]
        if jax.dtypes.issubdtype(expected.dtype, jax.dtypes.prng_key):
            expected = jax.eval_shape(jax.random.key_data, expected)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise UserError(
                f"{where}: {name} is {found.dtype}{list(found.shape)}, this run expects "
                f"{expected.dtype}{list(expected.shape)}; it was written with other settings",
                page="run-directory#resume",
            )

    jax.tree_util.tree_map_with_path(check, like)


def rebuild(named: Mapping[str, np.ndarray], like: PyTree, where: Path) -> PyTree:
    """The tree of `like` (arrays or types) from its named leaves."""
    check_types(named, like, where)

    def leaf(path: Any, expected: Any) -> Any:
        found = named[leaf_name(path)]
        if jax.dtypes.issubdtype(expected.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(expected) if isinstance(expected, jax.Array) else None
            return jax.random.wrap_key_data(jax.numpy.asarray(found), impl=impl)
        return found

    return jax.tree_util.tree_map_with_path(leaf, like)


# Writing and reading


def write_arrays(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name into a new directory."""
    import orbax.checkpoint as ocp

    # Orbax cannot store empty arrays; their shape and dtype say all.
    full = {name: array for name, array in arrays.items() if array.size}
    empty = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items() if not array.size}
    with _one_line_errors(), ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory / "arrays", full)
    (directory / "empty.json").write_text(json.dumps(empty))


def read_arrays(checkpoint: CheckpointDirectory, part: str, like: PyTree, prefix: str = "") -> dict[str, np.ndarray]:
    """All arrays of a part by name; those in `like`, under `prefix`, must have its types.

    Orbax opens files by their paths. The check of the manifest has just verified that there are no links among them.
    """
    import orbax.checkpoint as ocp

    directory = checkpoint.path / part
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            _check_store(checkpoint, f"{part}/arrays")
            with _one_line_errors():
                declared = dict(checkpointer.metadata(directory / "arrays").item_metadata.tree)
            _check_chunks(declared)
            empty = _empty_arrays(checkpoint.json(f"{part}/empty.json"))
            types = {name: jax.ShapeDtypeStruct(found.shape, found.dtype) for name, found in declared.items()}
            types |= {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in empty.items()}
            own = {name.removeprefix(prefix): type_ for name, type_ in types.items() if name.startswith(prefix)}
            check_types(own, like, directory.parent)
            expected = {prefix + leaf_name(path) for path, _ in jax.tree.leaves_with_path(like)}
            _check_size(checkpoint.bytes_of(part), types, expected)
            restore = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in declared}
            with _one_line_errors():
                arrays = checkpointer.restore(directory / "arrays", restore_args=restore)
        for name, array in arrays.items():
            if (array.shape, array.dtype) != (types[name].shape, types[name].dtype):
                raise Unreadable(f"{name} is not what its metadata say")
    except (UserError, Unreadable):
        raise
    except Exception as error:  # orbax and its libraries raise many kinds
        raise Unreadable(one_line(error)) from error
    return {**arrays, **empty}


def _empty_arrays(described: Any) -> dict[str, np.ndarray]:
    """Arrays of no elements by name."""
    arrays = {}
    for name, (shape, dtype) in described.items():
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) or len(shape) > 32:
            raise Unreadable(f"{name} is said to be empty, of shape {str(shape)[:60]}")
        arrays[name] = np.zeros(shape, dtype)
    return arrays


# Checks of what files declare


def _check_store(checkpoint: CheckpointDirectory, arrays: str) -> None:
    """Refuses a store of another kind than runs write: in one of plain files, an array's name may be any path."""
    described = checkpoint.json(f"{arrays}/_METADATA")
    database = checkpoint.has(f"{arrays}/manifest.ocdbt")
    if not database or described.get("use_ocdbt", True) is not True or described.get("use_zarr3", False) is not False:
        raise Unreadable("its arrays are not stored as a run stores them, in a database (OCDBT) of zarr 2")


def _check_chunks(declared: Mapping[str, Any]) -> None:
    """Refuses arrays in chunks larger than themselves: reading any element unpacks the whole chunk."""
    for name, found in declared.items():
        chunk = found.storage.chunk_shape if found.storage is not None else None
        if chunk is None or len(chunk) != len(found.shape) or any(np.array(chunk) > np.maximum(found.shape, 1)):
            raise Unreadable(f"{name} of shape {list(found.shape)} is stored in chunks of shape {str(chunk)[:60]}")


def _check_size(file_bytes: int, types: Mapping[str, Any], expected: Collection[str]) -> None:
    """Refuses unexpected arrays that are far larger than their files, and more than fits into memory."""
    sizes = {name: math.prod(map(int, x.shape)) * np.dtype(x.dtype).itemsize for name, x in types.items()}
    claimed = sum(sizes[name] for name in types.keys() - expected)
    if claimed > max(ANY_BYTES, file_bytes * MOST_PACKED):
        raise Unreadable(f"files of {file_bytes:,} bytes claim to hold {claimed:,}")
    memory = memory_bytes()
    if sum(sizes.values()) > memory:
        raise Unreadable(f"it holds {sum(sizes.values()):,} bytes, and this machine has {memory:,} of memory")


# Orbax's logs


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Silences orbax's logs of exceptions, with tracebacks, and re-raises an exception as an OSError of one line."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.level for logger in loggers]
    reason = None
    _ignore_closed_loops()
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        try:
            yield
        except Exception as error:
            reason = one_line(error)
        if reason is not None:
            gc.collect()  # futures that failed log when they are collected: now, while nothing is logged
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
    if reason is not None:
        raise OSError(reason)


def _ignore_closed_loops() -> None:
    """Silences further failed writes by threads of tensorstore, which report them to an event loop that is closed.

    Each would print a traceback through one of these two hooks, whenever it ends.
    """
    unraisable, uncaught = sys.unraisablehook, sys.excepthook

    def closed(error: BaseException | None) -> bool:
        return isinstance(error, RuntimeError) and str(error) == "Event loop is closed"

    def unraisable_unless_closed(raised: Any) -> None:
        if not closed(raised.exc_value):
            unraisable(raised)

    def uncaught_unless_closed(kind: Any, error: BaseException, traceback: Any) -> None:
        if not closed(error):
            uncaught(kind, error, traceback)

    if getattr(uncaught, "__qualname__", "") != uncaught_unless_closed.__qualname__:  # once is enough
        sys.unraisablehook, sys.excepthook = unraisable_unless_closed, uncaught_unless_closed
