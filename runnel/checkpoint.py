"""Checkpoints: everything a run needs to go on, written so that a cut-short one is never taken for whole.

`checkpoints/NUMBER/` holds `state` (and `replay`, in the newest one only: it may be large), each an orbax
directory of named arrays, and `manifest.json`, written last, with the size and hash of every file. A
directory is made under a temporary name and renamed; `latest` points to the newest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runnel.errors import UserError
from runnel.types import PyTree

FORMAT = 1


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


def _rebuilt(named: dict[str, np.ndarray], like: PyTree, where: Path) -> PyTree:
    """The tree of `like` (arrays or types) from its named leaves."""

    def leaf(path: Any, wanted: Any) -> Any:
        name = _name(path)
        if name not in named:
            raise UserError(f"{where} has no {name}; it was written by another algorithm or with other settings")
        found = named[name]
        if jax.dtypes.issubdtype(wanted.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(
                jax.numpy.asarray(found), impl=jax.random.key_impl(wanted) if isinstance(wanted, jax.Array) else None
            )
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise UserError(
                f"{where}: {name} is {found.dtype}{list(found.shape)}, this run wants "
                f"{wanted.dtype}{list(wanted.shape)}; it was written with other settings"
            )
        return found

    return jax.tree_util.tree_map_with_path(leaf, like)


def _write(directory: Path, arrays: dict[str, np.ndarray]) -> None:
    import orbax.checkpoint as ocp

    # Empty arrays cannot be stored, and need not be: their shape says all.
    full = {name: array for name, array in arrays.items() if array.size}
    hollow = {name: [list(array.shape), str(array.dtype)] for name, array in arrays.items() if not array.size}
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(directory / "arrays", full)
    (directory / "empty.json").write_text(json.dumps(hollow))


def _read(directory: Path) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        restore = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), _tree_of(checkpointer, directory))
        arrays = checkpointer.restore(directory / "arrays", restore_args=restore)
    hollow = json.loads((directory / "empty.json").read_text())
    return {**arrays, **{name: np.zeros(shape, dtype) for name, (shape, dtype) in hollow.items()}}


def _tree_of(checkpointer: Any, directory: Path) -> Any:
    return checkpointer.metadata(directory / "arrays").item_metadata.tree


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


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run_dir: Path, keep: int = 3):
        self.directory = Path(run_dir).absolute() / "checkpoints"
        self.keep = keep

    def save(self, number: int, saved: dict[str, PyTree], counters: dict[str, Any]) -> Path:
        """Writes a checkpoint: `saved` is a program's state, `counters` the plain numbers beside it."""
        carry = saved["carry"]
        state = {"carry": carry._replace(replays={}), "host": saved["host"]}
        target, temporary = self.directory / f"{number:012d}", self.directory / f".writing-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
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
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._point_to(target)
        self._prune()
        return target

    def load(self, like: dict[str, PyTree], note: Callable[[str], None]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """The newest whole checkpoint, in the structure of `like`; says so where newer ones had to be passed over."""
        path = self._newest_whole(note)
        named = _read(path / "state")
        carry = like["carry"]
        host = {
            name.removeprefix("['host']['").removesuffix("']"): array
            for name, array in named.items()
            if name.startswith("['host']")
        }
        rebuilt = _rebuilt(named, {"carry": carry._replace(replays={})}, path)["carry"]
        replays = carry.replays
        if replays:
            if (path / "replay").exists():
                replays = _rebuilt(_read(path / "replay"), replays, path)
            else:
                note(f"{path.name} is not the newest checkpoint and has no replay; it starts empty")
        counters = json.loads((path / "counters.json").read_text())
        return {"carry": rebuilt._replace(replays=replays), "host": host}, counters

    def load_states(self, like: PyTree, note: Callable[[str], None]) -> tuple[PyTree, Path]:
        """Only the learners' states, by group, and the checkpoint they are from."""
        path = self._newest_whole(note)
        prefix = "['carry'].states"
        named = {name.removeprefix(prefix): a for name, a in _read(path / "state").items() if name.startswith(prefix)}
        return _rebuilt(named, like, path), path

    def all(self) -> list[Path]:
        """Every checkpoint there is, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(path for path in self.directory.iterdir() if path.name.isdigit() and not path.is_symlink())

    def _newest_whole(self, note: Callable[[str], None]) -> Path:
        found = self.all()
        for path in reversed(found):
            problem = _problem(path)
            if problem is None:
                return path
            note(f"checkpoint {path.name} is not whole ({problem}); trying the one before it")
        if not found:
            raise UserError(
                f"{self.directory.parent} has no checkpoint yet; it was stopped before the first was written"
            )
        raise UserError(f"none of the {len(found)} checkpoints in {self.directory} is whole; nothing was changed")

    def _point_to(self, target: Path) -> None:
        link = self.directory / f".latest-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        link.replace(self.directory / "latest")

    def _prune(self) -> None:
        """Keeps the newest few, and replay in the newest only."""
        found = self.all()
        for path in found[: -self.keep]:
            shutil.rmtree(path, ignore_errors=True)
        for path in found[-self.keep : -1]:
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
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']}, this version reads {FORMAT}"
        wanted = manifest["files"]
        for name, (size, digest) in wanted.items():
            file_path = path / name
            if not file_path.is_file() or file_path.stat().st_size != size:
                return f"{name} is missing or cut short"
            with file_path.open("rb") as file:
                if hashlib.file_digest(file, "blake2b").hexdigest() != digest:
                    return f"{name} is damaged"
    except FileNotFoundError:
        return "it was cut short while being written"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
