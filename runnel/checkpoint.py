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
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runnel.errors import UserError
from runnel.files import one_line
from runnel.types import PyTree

FORMAT = 1

MOST_JSON_BYTES = 1 << 26
ANY_BYTES, MOST_PACKED = 1 << 26, 1024
"""Arrays that nothing is known of may be so large, or so many times larger than the files that hold them."""

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


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """What orbax raises it also logs, with tracebacks; a full disk is worth a line, which is raised instead."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before = [logger.level for logger in loggers]
    reason = None
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


def _read(directory: Path, like: PyTree, prefix: str = "") -> dict[str, np.ndarray]:
    """The arrays of a directory by name; those that `like` has, under `prefix`, must be of its types.

    What is declared is checked before it is read: a file of a few bytes can claim to be of any size.
    """
    import orbax.checkpoint as ocp

    try:
        with ocp.PyTreeCheckpointer() as checkpointer:
            declared = dict(checkpointer.metadata(directory / "arrays").item_metadata.tree)
            hollow = _hollow(_json(directory / "empty.json"))
            types = {name: jax.ShapeDtypeStruct(found.shape, found.dtype) for name, found in declared.items()}
            types |= {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in hollow.items()}
            own = {name.removeprefix(prefix): type_ for name, type_ in types.items() if name.startswith(prefix)}
            _check(own, like, directory.parent)
            _check_size(directory, types, {prefix + _name(path) for path, _ in jax.tree.leaves_with_path(like)})
            restore = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in declared}
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


def _check_size(directory: Path, types: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Refuses arrays that nothing is known of where they would be far larger than their files."""
    files = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    others = [types[name] for name in types.keys() - wanted]
    claimed = sum(math.prod(map(int, x.shape)) * np.dtype(x.dtype).itemsize for x in others)
    if claimed > max(ANY_BYTES, files * MOST_PACKED):
        raise _Unreadable(f"files of {files:,} bytes claim to hold {claimed:,}")


def _json(path: Path) -> Any:
    """What a JSON file of a checkpoint says."""
    if path.stat().st_size > MOST_JSON_BYTES:
        raise ValueError(f"{path.name} is larger than {MOST_JSON_BYTES:,} bytes")
    return json.loads(path.read_text())


def _files(directory: Path) -> dict[str, list[Any]]:
    """Size and hash of each file below a directory."""
    found = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[str(path.relative_to(directory))] = [
                path.stat().st_size,
                hashlib.file_digest(file, "blake2b").hexdigest(),
            ]
    return found


def _remove(directory: Path) -> None:
    """Removes what is half written; threads of the library that could not write it may still be at it."""
    for _ in range(20):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.05)


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: Path, keep: int = 3):
        self.directory = Path(run_dir).absolute() / "checkpoints"
        self.keep = keep

    def save(self, number: int, saved: dict[str, PyTree], counters: dict[str, Any]) -> Path:
        """Writes a checkpoint: `saved` is a program's state, `counters` the plain numbers beside it."""
        carry = saved["carry"]
        state = {"carry": carry._replace(replays={}), "host": saved["host"]}
        target, temporary = self.directory / f"{number:012d}", self.directory / f"{WRITING}{os.getpid()}"
        self._clear_away()
        temporary.mkdir(parents=True)
        try:
            _write(temporary / "state", _named(state))
            if carry.replays:
                _write(temporary / "replay", _named(carry.replays))
            (temporary / "counters.json").write_text(json.dumps(counters))
            manifest = {"format": FORMAT, "files": _files(temporary)}
            with (temporary / "manifest.json").open("w") as file:
                json.dump(manifest, file)
                file.flush()
                os.fsync(file.fileno())
            if target.exists():
                # It counts until the new one is there: a run may be killed between any two lines.
                before = target.with_name(target.name + BEFORE)
                shutil.rmtree(before, ignore_errors=True)
                target.rename(before)
            temporary.rename(target)
        finally:
            _remove(temporary)
        with contextlib.suppress(OSError):  # the checkpoint is whole; what follows is done again with the next one
            self._point_to(target)
            self._prune(target)
        return target

    def load(self, like: dict[str, PyTree], note: Callable[[str], None]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """The newest whole checkpoint, in the structure of `like`; says so where newer ones had to be passed over."""
        for path in self._whole(note):
            try:
                return self._load(path, like, note)
            except _Unreadable as problem:
                note(f"checkpoint {path.name} cannot be read ({problem}); trying the one before it")
        raise self._none()

    def _load(
        self, path: Path, like: dict[str, PyTree], note: Callable[[str], None]
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        carry = like["carry"]
        state = {"carry": carry._replace(replays={})}
        named = _read(path / "state", state)
        host = {
            name.removeprefix("['host']['").removesuffix("']"): array
            for name, array in named.items()
            if name.startswith("['host']")
        }
        rebuilt = _rebuilt(named, state, path)["carry"]
        replays = carry.replays
        if replays:
            if (path / "replay" / "empty.json").exists() and _has_replay(_json(path / "manifest.json")["files"]):
                replays = _rebuilt(_read(path / "replay", replays), replays, path)
            else:
                note(f"{path.name} is not the newest checkpoint and has no replay; it starts empty")
        try:
            counters = _json(path / "counters.json")
        except (OSError, ValueError, RecursionError) as error:
            raise _Unreadable(f"counters.json: {one_line(error)}") from error
        if not isinstance(counters, dict):
            raise _Unreadable("counters.json holds no counters")
        return {"carry": rebuilt._replace(replays=replays), "host": host}, counters

    def load_states(self, like: PyTree, note: Callable[[str], None]) -> tuple[PyTree, Path]:
        """Only the learners' states, by group, and the checkpoint they are from."""
        prefix = "['carry'].states"
        for path in self._whole(note):
            try:
                arrays = _read(path / "state", like, prefix)
            except _Unreadable as problem:
                note(f"checkpoint {path.name} cannot be read ({problem}); trying the one before it")
                continue
            named = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            return _rebuilt(named, like, path), path
        raise self._none()

    def all(self) -> list[Path]:
        """Every checkpoint there is, oldest first."""
        if not self.directory.is_dir():
            return []
        found = {}
        for path in self.directory.iterdir():
            number = path.name.removesuffix(BEFORE)
            if number.isdigit() and not path.is_symlink():
                found[int(number), number == path.name] = path
        return [found[key] for key in sorted(found)]

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next((path for path in reversed(self.all()) if _problem(path) is None), None)

    def _whole(self, note: Callable[[str], None]) -> Iterator[Path]:
        """The whole checkpoints, newest first; says which are not."""
        for path in reversed(self.all()):
            problem = _problem(path)
            if problem is None:
                yield path
            else:
                note(f"checkpoint {path.name} is not whole ({problem}); trying the one before it")

    def _none(self) -> UserError:
        found = self.all()
        if not found:
            return UserError(
                f"{self.directory.parent} has no checkpoint; it was stopped before the first was written: train again"
            )
        return UserError(f"none of the {len(found)} checkpoints in {self.directory} is whole; nothing was changed")

    def _point_to(self, target: Path) -> None:
        link = self.directory / f".latest-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(self.directory / "latest")

    def _clear_away(self) -> None:
        """Removes what runs that were killed have left half written."""
        for path in self.directory.glob(f"{WRITING}*"):
            pid = path.name.removeprefix(WRITING)
            if pid == str(os.getpid()) or not Path("/proc", pid).exists():
                shutil.rmtree(path, ignore_errors=True)

    def _prune(self, newest: Path) -> None:
        """Keeps the newest few, and replay in the newest only."""
        found = self.all()
        earlier = found[: found.index(newest) + 1]
        kept = [path for path in earlier if not path.name.endswith(BEFORE)][-self.keep :]
        # Later numbers than the newest one's are those of checkpoints that could not be read, or were rolled back.
        for path in found:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)
        for path in kept[:-1]:
            if (path / "replay").exists():
                # The manifest first: a directory too many harms nothing, a missing one would.
                manifest = json.loads((path / "manifest.json").read_text())
                manifest["files"] = {name: v for name, v in manifest["files"].items() if not name.startswith("replay/")}
                temporary = path / ".manifest.json"
                temporary.write_text(json.dumps(manifest))
                temporary.replace(path / "manifest.json")
                shutil.rmtree(path / "replay", ignore_errors=True)


def _problem(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        there = _plain_files(path)
        manifest = _json(path / "manifest.json")
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']}, this version reads {FORMAT}"
        wanted = manifest["files"]
        for name in {"counters.json", "state/empty.json"} - wanted.keys():
            return f"its manifest has no {name}"
        for name, (size, digest) in wanted.items():
            # Only what was found below the directory is opened: a manifest may name any file of the machine.
            if name not in there or (path / name).stat().st_size != size:
                return f"{name} is missing or cut short"
            with (path / name).open("rb") as file:
                if hashlib.file_digest(file, "blake2b").hexdigest() != digest:
                    return f"{name} is damaged"
        for name in there - wanted.keys():
            if name.startswith("state/") or (name.startswith("replay/") and _has_replay(wanted)):
                return f"{name} is not in its manifest"
    except FileNotFoundError:
        return "it was cut short while being written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{type(error).__name__}: {one_line(error)}"
    return None


def _has_replay(files: Mapping[str, Any]) -> bool:
    """What is left of one that is no longer kept is no part of a checkpoint."""
    return any(name.startswith("replay/") for name in files)


def _plain_files(directory: Path) -> set[str]:
    """The files below a directory. Links, and what is no file, are refused: reading them may lead anywhere, or hang."""
    found = set()
    for path in directory.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            found.add(path.relative_to(directory).as_posix())
        elif not stat.S_ISDIR(mode):
            raise ValueError(f"{path.relative_to(directory)} is no plain file")
    return found
