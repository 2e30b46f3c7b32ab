"""Checkpoints: everything a run needs to go on, written so that a cut-short one is never taken for whole.

`checkpoints/NUMBER/` holds `state` (and `replay`, in the newest one only: it may be large), each an orbax
directory of named arrays, and `manifest.json`, written last, with the size and hash of every file. A
directory is made under a temporary name and renamed; `latest` points to the newest.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.files import clean, one_line, read_json, told_plainly
from runnel.types import PyTree

FORMAT = 1

MOST_JSON_BYTES = 1 << 26
ANY_BYTES, MOST_PACKED = 1 << 26, 1024
"""Arrays that nothing is known of may be so large, or so many times larger than the files that hold them."""

DIRECTORY = "checkpoints"
NUMBER = re.compile(r"[0-9]{1,18}")

ANY_SIZE = 1 << 62
"""Of a checkpoint's files: what they may claim to hold is bounded, and they have no holes; see `rundir.tree`."""

Refuse = Callable[[dict[str, PyTree], dict[str, Any]], str | None]

WRITING, BEFORE = ".writing-", ".before"
"""Beginning of the name of what is being written, and end of that of a checkpoint that is being replaced."""


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path)


def _named(tree: PyTree) -> dict[str, np.ndarray]:
    """Leaves by their path; random keys as the numbers they are made of."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jax.dtypes.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        named[_name(path)] = np.asarray(jax.device_get(leaf))
    return named


class _Unreadable(Exception):
    """A checkpoint's files are as its manifest says, and yet they are no checkpoint's."""


def _check(named: Mapping[str, Any], like: PyTree, where: Path) -> None:
    """Refuses arrays, or their types, that are not those of `like`: before they are read, for they may be any size."""

    def leaf(path: Any, wanted: Any) -> Any:
        name = _name(path)
        if name not in named:
            raise UserError(f"{where} has no {name}; it was written by another algorithm or with other settings")
        found = named[name]
        if jax.dtypes.issubdtype(wanted.dtype, jax.dtypes.prng_key):
            wanted = jax.eval_shape(jax.random.key_data, wanted)
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise UserError(
                f"{where}: {name} is {found.dtype}{list(found.shape)}, this run wants "
                f"{wanted.dtype}{list(wanted.shape)}; it was written with other settings"
            )

    jax.tree_util.tree_map_with_path(leaf, like)


def _rebuilt(named: dict[str, np.ndarray], like: PyTree, where: Path) -> PyTree:
    """The tree of `like` (arrays or types) from its named leaves."""
    _check(named, like, where)

    def leaf(path: Any, wanted: Any) -> Any:
        found = named[_name(path)]
        if jax.dtypes.issubdtype(wanted.dtype, jax.dtypes.prng_key):
            impl = jax.random.key_impl(wanted) if isinstance(wanted, jax.Array) else None
            return jax.random.wrap_key_data(jax.numpy.asarray(found), impl=impl)
        return found

    return jax.tree_util.tree_map_with_path(leaf, like)


def _ignore_closed_loops() -> None:
    """Further writes that fail are reported, by threads of tensorstore, to an event loop that is closed by then.

    Each prints a traceback through one of these two hooks, whenever it ends.
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


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """What orbax raises it also logs, with tracebacks; a full disk is worth a line, which is raised instead."""
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
            gc.collect()  # whose futures would otherwise be heard of whenever they are found
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
    if reason is not None:
        raise OSError(reason)


def _write(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Empty arrays cannot be stored, and need not be: their shape says all.
    full = {name: array for name, array in arrays.items() if array.size}
    hollow = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items() if not array.size}
    with _unlogged(), ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory / "arrays", full)
    (directory / "empty.json").write_text(json.dumps(hollow))


def _read(checkpoint: _Checkpoint, part: str, like: PyTree, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a directory by name; those that `like` has, under `prefix`, must be of its types.

    What is declared is checked before it is read: a file of a few bytes can claim to be of any size. Orbax opens files
    by their paths. That there are no links among them was seen a moment ago, when the manifest was checked.
    """
    import orbax.checkpoint as ocp

    directory = checkpoint.path / part
    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            _check_store(checkpoint, f"{part}/arrays")
            with _unlogged():
                declared = dict(checkpointer.metadata(directory / "arrays").item_metadata.tree)
            _check_chunks(declared)
            hollow = _hollow(checkpoint.json(f"{part}/empty.json"))
            types = {name: jax.ShapeDtypeStruct(found.shape, found.dtype) for name, found in declared.items()}
            types |= {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in hollow.items()}
            own = {name.removeprefix(prefix): type_ for name, type_ in types.items() if name.startswith(prefix)}
            _check(own, like, directory.parent)
            _check_size(
                checkpoint.files(part), types, {prefix + _name(path) for path, _ in jax.tree.leaves_with_path(like)}
            )
            restore = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in declared}
            with _unlogged():
                arrays = checkpointer.restore(directory / "arrays", restore_args=restore)
        for name, array in arrays.items():
            if (array.shape, array.dtype) != (types[name].shape, types[name].dtype):
                raise _Unreadable(f"{name} is not what its metadata say")
    except (UserError, _Unreadable):
        raise
    except Exception as error:  # orbax and what it stands on have many
        raise _Unreadable(one_line(error)) from error
    return {**arrays, **hollow}


def _hollow(described: Any) -> dict[str, np.ndarray]:
    """Arrays of no elements by name."""
    arrays = {}
    for name, (shape, dtype) in described.items():
        if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) or len(shape) > 32:
            raise _Unreadable(f"{name} is said to be empty, of shape {str(shape)[:60]}")
        arrays[name] = np.zeros(shape, dtype)
    return arrays


def _check_store(checkpoint: _Checkpoint, arrays: str) -> None:
    """Refuses another kind of store than a run writes: in one of plain files the name of an array may be any path."""
    described = checkpoint.json(f"{arrays}/_METADATA")
    database = run_directory.exists(checkpoint.run_dir, f"{checkpoint.name}/{arrays}/manifest.ocdbt")
    if not database or described.get("use_ocdbt", True) is not True or described.get("use_zarr3", False) is not False:
        raise _Unreadable("its arrays are not stored as a run stores them, in a database (OCDBT) of zarr 2")


def _check_chunks(declared: Mapping[str, Any]) -> None:
    """Refuses arrays that are stored in pieces larger than themselves: to read any of a piece, all is unpacked."""
    for name, found in declared.items():
        chunk = found.storage.chunk_shape if found.storage is not None else None
        if chunk is None or len(chunk) != len(found.shape) or any(np.array(chunk) > np.maximum(found.shape, 1)):
            raise _Unreadable(f"{name} of shape {list(found.shape)} is stored in pieces of shape {str(chunk)[:60]}")


def _check_size(files: int, types: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuses arrays that nothing is known of and that are far larger than their files, and more than memory holds."""
    sizes = {name: math.prod(map(int, x.shape)) * np.dtype(x.dtype).itemsize for name, x in types.items()}
    claimed = sum(sizes[name] for name in types.keys() - wanted)
    if claimed > max(ANY_BYTES, files * MOST_PACKED):
        raise _Unreadable(f"files of {files:,} bytes claim to hold {claimed:,}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sum(sizes.values()) > memory:
        raise _Unreadable(f"it holds {sum(sizes.values()):,} bytes, and this machine has {memory:,} of memory")


class _Checkpoint(NamedTuple):
    """One of a run directory's checkpoints, or what stands in its place."""

    run_dir: Path
    name: str

    @property
    def path(self) -> Path:
        return self.run_dir / self.name

    def json(self, name: str) -> Any:
        return read_json(self.run_dir, f"{self.name}/{name}", MOST_JSON_BYTES)

    def files(self, part: str) -> int:
        """Bytes of all files below a part."""
        return sum(run_directory.tree(self.run_dir, f"{self.name}/{part}").values())

    def digest(self, name: str) -> str:
        with run_directory.open_to_read(self.run_dir, f"{self.name}/{name}", ANY_SIZE) as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    def described(self) -> dict[str, list[Any]]:
        """Size and hash of each file."""
        sizes = run_directory.tree(self.run_dir, self.name)
        return {name: [sizes[name], self.digest(name)] for name in sorted(sizes)}

    def problem(self) -> str | None:
        """What is wrong with it, or None."""
        try:
            there = run_directory.tree(self.run_dir, self.name)
            manifest = self.json("manifest.json")
            if manifest["format"] != FORMAT:
                return f"format {str(manifest['format'])[:20]}, this version reads {FORMAT}"
            wanted = manifest["files"]
            for name in {"counters.json", "state/empty.json"} - wanted.keys():
                return f"its manifest has no {name}"
            for name, (size, digest) in wanted.items():
                # Only what was found below the directory is opened: a manifest may name any file of the machine.
                if there.get(name) != size:
                    return f"{name[:100]} is missing or cut short"
                if self.digest(name) != digest:
                    return f"{name} is damaged"
            for name in there.keys() - wanted.keys():
                if name.startswith("state/") or (name.startswith("replay/") and _has_replay(wanted)):
                    return f"{name} is not in its manifest"
        except FileNotFoundError:
            return "it was cut short while being written"
        except OSError as error:
            return one_line(error)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"{type(error).__name__}: {one_line(error)}"
        return None


def _has_replay(files: Mapping[str, Any]) -> bool:
    """What is left of one that is no longer kept is no part of a checkpoint."""
    return any(name.startswith("replay/") for name in files)


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: Path, keep: int = 3):
        self.run_dir = Path(run_dir).absolute()
        self.directory = self.run_dir / DIRECTORY
        self.keep = keep

    def save(self, number: int, saved: dict[str, PyTree], counters: dict[str, Any]) -> Path:
        """Writes a checkpoint: `saved` is a program's state, `counters` the plain numbers beside it."""
        carry = saved["carry"]
        state = {"carry": carry._replace(replays={}), "host": saved["host"]}
        target, temporary = f"{number:012d}", f"{WRITING}{os.getpid()}"
        self._clear_away()
        new = _Checkpoint(self.run_dir, f"{DIRECTORY}/{temporary}")
        run_directory.make_directory(self.run_dir, new.name, new=True)
        try:
            _write(new.path / "state", _named(state))
            if carry.replays:
                _write(new.path / "replay", _named(carry.replays))
            run_directory.replace(self.run_dir, f"{new.name}/counters.json", json.dumps(clean(counters)).encode())
            manifest = {"format": FORMAT, "files": new.described()}
            run_directory.replace(self.run_dir, f"{new.name}/manifest.json", json.dumps(manifest).encode())
            if run_directory.exists(self.run_dir, f"{DIRECTORY}/{target}"):
                # It counts until the new one is there: a run may be killed between any two lines.
                run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{target}{BEFORE}")
                self._rename(target, target + BEFORE)
            self._rename(temporary, target)
        finally:
            self._remove(temporary)
        # The checkpoint is whole; what follows is done again with the next one.
        for follows in (self._point_to, self._prune):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                follows(target)
        return self.directory / target

    def load(
        self, like: dict[str, PyTree], note: Callable[[str], None], refuse: Refuse = lambda saved, counters: None
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """The newest whole checkpoint, in the structure of `like`; says so where newer ones had to be passed over.

        `refuse` says what is wrong with a checkpoint's content, or None.
        """
        for checkpoint in self._whole(note):
            with self._passing_over(checkpoint, note):
                saved, counters = self._load(checkpoint, like, note)
                _refused(refuse(saved, counters))
                return saved, counters
        raise self._none()

    def _load(
        self, checkpoint: _Checkpoint, like: dict[str, PyTree], note: Callable[[str], None]
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        carry = like["carry"]
        state = {"carry": carry._replace(replays={})}
        counters = _counters(checkpoint)
        named = _read(checkpoint, "state", state)
        host = {
            name.removeprefix("['host']['").removesuffix("']"): array
            for name, array in named.items()
            if name.startswith("['host']")
        }
        rebuilt = _rebuilt(named, state, checkpoint.path)["carry"]
        replays = carry.replays
        if replays:
            if _has_replay(checkpoint.json("manifest.json")["files"]):
                replays = _rebuilt(_read(checkpoint, "replay", replays), replays, checkpoint.path)
            else:
                note(f"{checkpoint.path.name} is not the newest checkpoint and has no replay; it starts empty")
        return {"carry": rebuilt._replace(replays=replays), "host": host}, counters

    def load_states(
        self, like: PyTree, note: Callable[[str], None], refuse: Refuse = lambda states, counters: None
    ) -> tuple[PyTree, Path]:
        """Only the learners' states, by group, and the checkpoint they are from."""
        prefix = "['carry'].states"
        for checkpoint in self._whole(note):
            with self._passing_over(checkpoint, note):
                counters = _counters(checkpoint)
                arrays = _read(checkpoint, "state", like, prefix)
                named = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
                states = _rebuilt(named, like, checkpoint.path)
                _refused(refuse(states, counters))
                return states, checkpoint.path
        raise self._none()

    def all(self) -> list[Path]:
        """Every checkpoint there is, oldest first."""
        found = {}
        for name in run_directory.names(self.run_dir, DIRECTORY):
            number = name.removesuffix(BEFORE)
            if NUMBER.fullmatch(number):
                found[int(number), number == name] = self.directory / name
        return [found[key] for key in sorted(found)]

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next((path for path in reversed(self.all()) if self._of(path).problem() is None), None)

    def _of(self, path: Path) -> _Checkpoint:
        return _Checkpoint(self.run_dir, f"{DIRECTORY}/{path.name}")

    def _whole(self, note: Callable[[str], None]) -> Iterator[_Checkpoint]:
        """The whole checkpoints, newest first; says which are not."""
        with told_plainly(self.directory, "read"):
            found = self.all()
        for path in reversed(found):
            problem = self._of(path).problem()
            if problem is None:
                yield self._of(path)
            else:
                note(f"checkpoint {path.name} is not whole ({problem}); trying the one before it")

    @contextlib.contextmanager
    def _passing_over(self, checkpoint: _Checkpoint, note: Callable[[str], None]) -> Iterator[None]:
        """Around one that may turn out not to be one."""
        try:
            yield
        except _Unreadable as problem:
            note(f"checkpoint {checkpoint.path.name} cannot be read ({problem}); trying the one before it")

    def _none(self) -> UserError:
        found = self.all()
        if not found:
            return UserError(
                f"{self.run_dir} has no checkpoint; it was stopped before the first was written: train again with "
                "another --run-dir, or remove this directory"
            )
        return UserError(f"none of the {len(found)} checkpoints in {self.directory} is whole; nothing was changed")

    def _rename(self, name: str, other: str) -> None:
        with run_directory.directory(self.run_dir, DIRECTORY) as fd:
            os.rename(name, other, src_dir_fd=fd, dst_dir_fd=fd)

    def _remove(self, name: str) -> None:
        """Removes what is half written; threads of the library that could not write it may still be at it."""
        for _ in range(20):
            run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{name}")
            if not run_directory.exists(self.run_dir, f"{DIRECTORY}/{name}"):
                return
            time.sleep(0.05)

    def _point_to(self, target: str) -> None:
        """`latest` is for people, and never read."""
        link = f".latest-{os.getpid()}"
        with run_directory.directory(self.run_dir, DIRECTORY) as fd:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link, dir_fd=fd)
            os.symlink(target, link, dir_fd=fd)
            try:
                os.rename(link, "latest", src_dir_fd=fd, dst_dir_fd=fd)
            except OSError:
                os.unlink(link, dir_fd=fd)
                raise

    def _clear_away(self) -> None:
        """Removes what runs that were killed have left half written."""
        for name in run_directory.names(self.run_dir, DIRECTORY):
            pid = name.removeprefix(WRITING)
            if name != pid and (pid == str(os.getpid()) or not Path("/proc", pid).exists()):
                run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{name}")

    def _prune(self, newest: str) -> None:
        """Keeps the newest few, and replay in the newest only."""
        found = self.all()
        earlier = found[: found.index(self.directory / newest) + 1]
        kept = [path for path in earlier if not path.name.endswith(BEFORE)][-self.keep :]
        # Later numbers than the newest one's are those of checkpoints that could not be read, or were rolled back.
        for path in found:
            if path not in kept:
                run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{path.name}")
        for path in kept[:-1]:
            name = f"{DIRECTORY}/{path.name}"
            if run_directory.exists(self.run_dir, f"{name}/replay"):
                # The manifest first: a directory too many harms nothing, a missing one would.
                manifest = self._of(path).json("manifest.json")
                manifest["files"] = {n: v for n, v in manifest["files"].items() if not n.startswith("replay/")}
                run_directory.replace(self.run_dir, f"{name}/manifest.json", json.dumps(manifest).encode())
                run_directory.remove_tree(self.run_dir, f"{name}/replay")


def _counters(checkpoint: _Checkpoint) -> dict[str, Any]:
    """The plain numbers beside a checkpoint."""
    try:
        counters = checkpoint.json("counters.json")
    except (OSError, ValueError, RecursionError) as error:
        raise _Unreadable(f"counters.json: {one_line(error)}") from error
    if not isinstance(counters, dict):
        raise _Unreadable("counters.json holds no counters")
    number = int(checkpoint.path.name.removesuffix(BEFORE))
    if counters.get("iterations", number) != number:
        raise _Unreadable(f"counters.json is that of iteration {str(counters['iterations'])[:20]}")
    return counters


def _refused(problem: str | None) -> None:
    if problem is not None:
        raise _Unreadable(problem)
