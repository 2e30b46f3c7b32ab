"""The checkpoints of a run, written so that an interrupted write is never read as a whole checkpoint.

`checkpoints/NUMBER/` holds `state` (and `replay`, in the newest one only: it may be large), each a directory of named
arrays (`array_store.py`), `counters.json`, and `manifest.json`, written last, with the size and hash of every file
(`checkpoint_directory.py`). A directory is written under a temporary name and renamed; `latest` points to the newest.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.array_store import named_leaves, read_arrays, rebuild, write_arrays
from runnel.recording.checkpoint_directory import BEFORE, REPLAY, STATE, CheckpointDirectory, Unreadable
from runnel.recording.files import as_user_error
from runnel.system.platform import directory_of, is_running
from runnel.types import PyTree

DIRECTORY = "checkpoints"
NUMBER = re.compile(r"[0-9]{1,18}")

WRITING = ".writing-"
"""The prefix of the name of a checkpoint that is being written."""

AWAY_S, REMOVE_S = 0.5, 10.0
"""The seconds for which a removed incomplete checkpoint must stay away, since threads may recreate it, and for which
its removal is retried."""

MOST_REMOVED = 16
_removed: deque[int] = deque()
"""Descriptors of removed directories in which threads may still try to write: no other file gets their numbers yet."""

Refuse = Callable[[dict[str, PyTree], dict[str, Any]], str | None]
"""Returns the reason to refuse a checkpoint's content and counters, or None."""

_STATES, _HOST = "['carry'].states", "['host']"
"""Names of arrays on disk are paths in what a program saves: `{"carry": Carry, "host": {...}}`."""


class Checkpoints:
    """The checkpoints of one run directory.

    It is one class because writing and reading rest on the same order of renames: a run may be killed between any two
    of them, and what is then on disk decides which checkpoint is read.
    """

    def __init__(self, run_dir: Path, keep: int = 3):
        self.run_dir = Path(run_dir).absolute()
        self.directory = self.run_dir / DIRECTORY
        self.keep = keep

    def save(self, number: int, saved: dict[str, PyTree], counters: dict[str, Any]) -> Path:
        """Writes a checkpoint: `saved` is a program's state, `counters` the plain numbers beside it."""
        carry = saved["carry"]
        state = {"carry": carry._replace(replays={}), "host": saved["host"]}
        return self.save_named(number, named_leaves(state), named_leaves(carry.replays), counters)

    def save_named(
        self, number: int, state: Mapping[str, np.ndarray], replay: Mapping[str, np.ndarray], counters: dict[str, Any]
    ) -> Path:
        """Writes a checkpoint from arrays by their names on disk."""
        target = f"{number:012d}"
        with self._written(target) as (new, path):
            write_arrays(path / STATE, state)
            if replay:
                write_arrays(path / REPLAY, replay)
            new.write_counters(counters)
        # The checkpoint is whole; what follows is done again with the next one.
        for follows in (self._point_to, self._prune):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                follows(target)
        return self.directory / target

    def load(
        self, like: dict[str, PyTree], note: Callable[[str], None], refuse: Refuse = lambda saved, counters: None
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """State and counters of the newest whole checkpoint, in the structure of `like`.

        Checkpoints that are not whole, or that `refuse` has a reason against, are skipped; `note` gets the reason.
        """
        for checkpoint in self._whole(note):
            with self._passing_over(checkpoint, note):
                saved, counters = self._load(checkpoint, like, note)
                _refused(refuse(saved, counters))
                return saved, counters
        raise self.none_whole()

    def _load(
        self, checkpoint: CheckpointDirectory, like: dict[str, PyTree], note: Callable[[str], None]
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        carry = like["carry"]
        state = {"carry": carry._replace(replays={})}
        counters = checkpoint.counters()
        named = read_arrays(checkpoint, STATE, state)
        host = {
            name.removeprefix(f"{_HOST}['").removesuffix("']"): array
            for name, array in named.items()
            if name.startswith(_HOST)
        }
        rebuilt = rebuild(named, state, checkpoint.path)["carry"]
        replays = carry.replays
        if replays:
            if checkpoint.has_replay():
                replays = rebuild(read_arrays(checkpoint, REPLAY, replays), replays, checkpoint.path)
            else:
                note(f"{checkpoint.path.name} is not the newest checkpoint and has no replay; it starts empty")
        return {"carry": rebuilt._replace(replays=replays), "host": host}, counters

    def load_at(
        self, path: Path, like: dict[str, PyTree], note: Callable[[str], None]
    ) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """State and counters of one checkpoint, in the structure of `like`. Raises Unreadable if it is not whole."""
        _refused(self._of(path).problem())
        return self._load(self._of(path), like, note)

    def load_states(
        self, like: PyTree, note: Callable[[str], None], refuse: Refuse = lambda states, counters: None
    ) -> tuple[PyTree, Path]:
        """The learners' states alone, by group, and the checkpoint they are from."""
        for checkpoint in self._whole(note):
            with self._passing_over(checkpoint, note):
                counters = checkpoint.counters()
                arrays = read_arrays(checkpoint, STATE, like, _STATES)
                named = {name.removeprefix(_STATES): a for name, a in arrays.items() if name.startswith(_STATES)}
                states = rebuild(named, like, checkpoint.path)
                _refused(refuse(states, counters))
                return states, checkpoint.path
        raise self.none_whole()

    def copy_states(self, parent: Checkpoints) -> Path:
        """Replaces the learners' states in the newest checkpoint by those of another run's newest one.

        Everything else in it stays: environments, episodes, replay and counters. Repeating it changes nothing.
        """
        own, other = self.newest(), parent.newest()
        if own is None or other is None:
            raise UserError(f"{self.run_dir if own is None else parent.run_dir} has no whole checkpoint")
        arrays, theirs = self.read(own), parent.read(other)
        mine, copied = ({n: a for n, a in each.items() if n.startswith(_STATES)} for each in (arrays, theirs))
        if {n: (a.shape, a.dtype) for n, a in mine.items()} != {n: (a.shape, a.dtype) for n, a in copied.items()}:
            raise UserError(
                f"{self.run_dir} cannot continue from the state of {parent.run_dir}: networks or optimisers differ"
            )
        return self._write(own, {**arrays, **copied})

    def _write(self, old: Path, arrays: dict[str, np.ndarray]) -> Path:
        """Replaces a checkpoint by one with other arrays, and the same replay and counters."""
        target = old.name.removesuffix(BEFORE)
        with self._written(target) as (new, path):
            write_arrays(path / STATE, arrays)
            if self._of(old).has_replay():
                shutil.copytree(old / REPLAY, path / REPLAY)
            new.write_counters(self._of(old).counters())
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._prune(target)  # done again with the next one
        return self.directory / target

    @contextlib.contextmanager
    def _written(self, target: str) -> Iterator[tuple[CheckpointDirectory, Path]]:
        """Creates a directory for a checkpoint's content, and yields a path to it; it becomes `target` at the end."""
        temporary = f"{WRITING}{os.getpid()}"
        self._clear_away()
        new = CheckpointDirectory(self.run_dir, f"{DIRECTORY}/{temporary}")
        run_directory.make_directory(self.run_dir, new.name, new=True)
        with run_directory.directory(self.run_dir, new.name) as fd:
            kept = os.dup(fd)
        through = directory_of(kept)
        try:
            yield new, through or new.path
            new.write_manifest()
            self._put(temporary, target)
        except BaseException as error:
            self._remove(temporary, for_good=through is not None)
            _keep_open(kept)
            if isinstance(error, OSError) and through is not None and str(through) in str(error):
                raise OSError(str(error).replace(str(through), str(new.path))) from None
            raise
        os.close(kept)

    def _put(self, temporary: str, target: str) -> None:
        """Gives a written checkpoint its final name."""
        if run_directory.exists(self.run_dir, f"{DIRECTORY}/{target}"):
            # It counts until the new one is there: a run may be killed between any two lines.
            run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{target}{BEFORE}")
            self.rename(target, target + BEFORE)
        self.rename(temporary, target)

    def read(self, path: Path, part: str = STATE) -> dict[str, np.ndarray]:
        """All arrays of one checkpoint by their names on disk, whatever their types. `part`: "state" or "replay"."""
        return read_arrays(self._of(path), part, {})

    def counters(self, path: Path) -> dict[str, Any]:
        """The plain numbers of one checkpoint."""
        return self._of(path).counters()

    def has_replay(self, path: Path) -> bool:
        return self._of(path).has_replay()

    def all(self) -> list[Path]:
        """Every checkpoint, whole or not, oldest first."""
        found = {}
        for name in run_directory.names(self.run_dir, DIRECTORY):
            number = name.removesuffix(BEFORE)
            if NUMBER.fullmatch(number):
                found[int(number), number == name] = self.directory / name
        return [found[key] for key in sorted(found)]

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next((path for path in reversed(self.all()) if self._of(path).problem() is None), None)

    def _of(self, path: Path) -> CheckpointDirectory:
        return CheckpointDirectory(self.run_dir, f"{DIRECTORY}/{path.name}")

    def _whole(self, note: Callable[[str], None]) -> Iterator[CheckpointDirectory]:
        """The whole checkpoints, newest first; reports the others through `note`."""
        with as_user_error(self.directory, "read"):
            found = self.all()
        for path in reversed(found):
            problem = self._of(path).problem()
            if problem is None:
                yield self._of(path)
            else:
                note(f"checkpoint {path.name} is not whole ({problem}); trying the one before it")

    @contextlib.contextmanager
    def _passing_over(self, checkpoint: CheckpointDirectory, note: Callable[[str], None]) -> Iterator[None]:
        """Surrounds the reading of a checkpoint that may turn out to be invalid."""
        try:
            yield
        except Unreadable as problem:
            note(f"checkpoint {checkpoint.path.name} cannot be read ({problem}); trying the one before it")

    def none_whole(self) -> UserError:
        found = self.all()
        if not found:
            return UserError(
                f"{self.run_dir} has no checkpoint; it was stopped before the first was written: train again with "
                "another run_dir=, or remove this directory",
                keywords=("run_dir",),
                page="troubleshooting#resume-is-refused",
            )
        return UserError(
            f"none of the {len(found)} checkpoints in {self.directory} is whole; nothing was changed",
            page="troubleshooting#resume-is-refused",
        )

    def rename(self, name: str, other: str) -> None:
        """Gives a checkpoint another name."""
        with run_directory.directory(self.run_dir, DIRECTORY) as fd:
            os.rename(name, other, src_dir_fd=fd, dst_dir_fd=fd)

    def _remove(self, name: str, for_good: bool) -> None:
        """Removes an incomplete checkpoint, while threads of the library that failed to write it may still recreate
        directories.

        `for_good`: once only, because they reach it through a descriptor alone.
        """
        deadline, away_since = time.monotonic() + REMOVE_S, None
        while (now := time.monotonic()) < deadline:
            # Checked to be away, not only removed: this thread may be suspended for any time between two lines.
            if run_directory.exists(self.run_dir, f"{DIRECTORY}/{name}"):
                run_directory.remove_tree(self.run_dir, f"{DIRECTORY}/{name}")
                away_since = None
            elif for_good:
                return
            elif away_since is None:
                away_since = now
            elif now - away_since >= AWAY_S:
                return
            time.sleep(0.01)

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
        """Removes incomplete checkpoints of runs that were killed."""
        for name in run_directory.names(self.run_dir, DIRECTORY):
            pid = name.removeprefix(WRITING)
            if name != pid and (pid == str(os.getpid()) or not (pid.isdecimal() and is_running(int(pid)))):
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
            self._of(path).drop_replay()


def _keep_open(removed: int) -> None:
    _removed.append(removed)
    if len(_removed) > MOST_REMOVED:
        os.close(_removed.popleft())


def _refused(problem: str | None) -> None:
    if problem is not None:
        raise Unreadable(problem)
