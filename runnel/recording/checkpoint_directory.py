"""One checkpoint on disk: its files, its manifest, and whether it is whole. Arrays are in `array_store.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runnel.recording import run_directory
from runnel.recording.files import clean, one_line, read_json

FORMAT = 1

MOST_JSON_BYTES = 1 << 26

ANY_SIZE = 1 << 62
"""Limits for the files of a checkpoint: sizes are unbounded but checked, and files have no holes; see
`run_directory.tree`."""

BEFORE = ".before"
"""The suffix of the name of a checkpoint that is being replaced."""

STATE, REPLAY = "state", "replay"
"""A checkpoint's two parts, each a directory of arrays. Only the newest checkpoint keeps its replay."""

_MANIFEST, _COUNTERS = "manifest.json", "counters.json"


class Unreadable(Exception):
    """The files of a checkpoint match its manifest, but no run writes such content."""


class CheckpointDirectory(NamedTuple):
    """A directory that is, or claims to be, a checkpoint: nothing in it is trusted."""

    run_dir: Path
    name: str  # below `run_dir`

    @property
    def path(self) -> Path:
        return self.run_dir / self.name

    def json(self, name: str) -> Any:
        return read_json(self.run_dir, f"{self.name}/{name}", MOST_JSON_BYTES)

    def has(self, name: str) -> bool:
        return run_directory.exists(self.run_dir, f"{self.name}/{name}")

    def bytes_of(self, part: str) -> int:
        """Bytes of all files below a part."""
        return sum(run_directory.tree(self.run_dir, f"{self.name}/{part}").values())

    # Writing

    def write_counters(self, counters: Mapping[str, Any]) -> None:
        self._write_json(_COUNTERS, clean(counters))

    def write_manifest(self) -> None:
        """Writes size and hash of every file. Written last: an interrupted checkpoint has none."""
        sizes = run_directory.tree(self.run_dir, self.name)
        files = {name: [sizes[name], self._digest(name)] for name in sorted(sizes)}
        self._write_json(_MANIFEST, {"format": FORMAT, "files": files})

    def drop_replay(self) -> None:
        """Removes the replay part, its entries in the manifest first: extra files are harmless, missing ones are
        not."""
        if not self.has(REPLAY):
            return
        manifest = self.json(_MANIFEST)
        manifest["files"] = {name: v for name, v in manifest["files"].items() if not name.startswith(f"{REPLAY}/")}
        self._write_json(_MANIFEST, manifest)
        run_directory.remove_tree(self.run_dir, f"{self.name}/{REPLAY}")

    def _write_json(self, name: str, value: Any) -> None:
        run_directory.replace(self.run_dir, f"{self.name}/{name}", json.dumps(value).encode())

    # Reading

    def problem(self) -> str | None:
        """The reason why it is not whole; None if it is."""
        try:
            return self._mismatch()
        except FileNotFoundError:
            return "its write was interrupted"
        except OSError as error:
            return one_line(error)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"{type(error).__name__}: {one_line(error)}"

    def _mismatch(self) -> str | None:
        """The difference between its files and its manifest; None if there is none."""
        found = run_directory.tree(self.run_dir, self.name)
        manifest = self.json(_MANIFEST)
        if manifest["format"] != FORMAT:
            return f"format {str(manifest['format'])[:20]}, this version reads {FORMAT}"
        listed = manifest["files"]
        for name in {_COUNTERS, f"{STATE}/empty.json"} - listed.keys():
            return f"its manifest has no {name}"
        for name, (size, digest) in listed.items():
            # Only what was found below the directory is opened: a manifest may name any file of the machine.
            if found.get(name) != size:
                return f"{name[:100]} is missing or truncated"
            if self._digest(name) != digest:
                return f"{name} is damaged"
        for name in found.keys() - listed.keys():
            # Replay files that the manifest does not list are left over from `drop_replay`.
            if name.startswith(f"{STATE}/") or (name.startswith(f"{REPLAY}/") and _lists_replay(listed)):
                return f"{name} is not in its manifest"
        return None

    def _digest(self, name: str) -> str:
        with run_directory.open_to_read(self.run_dir, f"{self.name}/{name}", ANY_SIZE) as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()

    def has_replay(self) -> bool:
        return _lists_replay(self.json(_MANIFEST)["files"])

    def counters(self) -> dict[str, Any]:
        """The plain numbers beside the arrays."""
        try:
            counters = self.json(_COUNTERS)
        except (OSError, ValueError, RecursionError) as error:
            raise Unreadable(f"{_COUNTERS}: {one_line(error)}") from error
        if not isinstance(counters, dict):
            raise Unreadable(f"{_COUNTERS} holds no counters")
        number = int(self.path.name.removesuffix(BEFORE))
        if counters.get("iterations", number) != number:
            raise Unreadable(f"{_COUNTERS} is that of iteration {str(counters['iterations'])[:20]}")
        return counters


def _lists_replay(files: Mapping[str, Any]) -> bool:
    return any(name.startswith(f"{REPLAY}/") for name in files)
