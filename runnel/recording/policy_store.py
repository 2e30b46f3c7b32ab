"""The policies that a run keeps: `policies/GROUP/VERSION/`, each a directory that `runnel.load` can read alone.

    store = PolicyStore(run_dir)
    store.query(group="agent", tag="best")
    store.query(where={"eval/return": lambda x: x > 400})
    store.tag("before-the-change", version=1024)

`latest` and `best` are tags of every store: the newest snapshot, and the one with the best evaluation. Others are the
user's, stored in `policies/tags.json`, and a tagged snapshot is never removed. Only the run writes snapshots; the user
tags them, also while it trains.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import unquote

import numpy as np

from runnel.config.policy_config import PolicyConfig
from runnel.errors import UserError, nearest
from runnel.recording import policy_directory, run_directory
from runnel.recording.files import as_user_error, read_json
from runnel.recording.policy_directory import group_directory

DIRECTORY: Final = "policies"
TAGS: Final = "tags.json"
LATEST, BEST = "latest", "best"
SCORE: Final = "score"
"""The entry of a snapshot's metadata with its score: higher is better."""

ABANDONED: Final = "abandoned"
"""The entry of a snapshot's metadata that marks it as abandoned: the run has returned to an earlier point."""

WRITING: Final = ".writing-"
VERSION: Final = re.compile(r"[0-9]{12,18}")
TAG: Final = re.compile(r"[A-Za-z_][\w.-]{0,99}")

Tags = dict[str, dict[str, int]]
"""Versions by tag and group."""


@dataclass(frozen=True)
class Snapshot:
    """One group's parameters at one version, in the store."""

    run_dir: Path
    config: PolicyConfig
    tags: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        return self.config.group

    @property
    def version(self) -> int:
        return self.config.version

    @property
    def env_steps(self) -> int:
        return self.config.env_steps

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.config.metadata

    @property
    def score(self) -> float | None:
        """Its score: the metric of its evaluation that decides which is best."""
        score = self.metadata.get(SCORE)
        return float(score) if isinstance(score, int | float) and math.isfinite(score) else None

    @property
    def abandoned(self) -> bool:
        """Whether the run has returned to an earlier point; the snapshot is kept only because the user has tagged
        it."""
        return self.metadata.get(ABANDONED) is True

    @property
    def name(self) -> str:
        """Its directory, below the run directory."""
        return snapshot_name(self.group, self.version)

    @property
    def path(self) -> Path:
        return self.run_dir / self.name

    def arrays(self) -> dict[str, np.ndarray]:
        """Its parameters by name."""
        return policy_directory.read_arrays(self.run_dir, self.name, self.config)

    def __repr__(self) -> str:
        tags = f", {', '.join(self.tags)}" if self.tags else ""
        return f"Snapshot({self.group!r}, version {self.version}, {self.env_steps} steps{tags})"


@dataclass(frozen=True)
class Retention:
    """The retention rule: snapshots that a run keeps besides the newest and those that the user has tagged."""

    every_steps: int | None = None
    """Keep the first snapshot in each interval of this many environment steps."""
    every_s: float | None = None
    """Keep the first snapshot in each interval of this many seconds."""
    best: int = 1
    """The number of snapshots with the best scores to keep, for each group."""

    def kept(self, snapshots: Sequence[Snapshot]) -> list[Snapshot]:
        """The snapshots to keep, among those of one group, oldest first."""
        if not snapshots:
            return []
        began = snapshots[0].config.time
        scored = sorted((s for s in snapshots if s.score is not None), key=lambda s: (-(s.score or 0.0), s.env_steps))
        chosen = {newest(snapshots).version, *(s.version for s in scored[: self.best])}
        chosen |= {s.version for s in snapshots if set(s.tags) - {LATEST, BEST}}
        for period, at in ((self.every_steps, lambda s: s.env_steps), (self.every_s, lambda s: s.config.time - began)):
            if period is not None:
                chosen |= _first_of_each(snapshots, lambda s, at=at, period=period: int(at(s) // period))
        return [snapshot for snapshot in snapshots if snapshot.version in chosen]


def newest(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The newest of one group's snapshots, given oldest first, that the run has not abandoned."""
    return next((s for s in reversed(snapshots) if not s.abandoned), snapshots[-1])


def _first_of_each(snapshots: Sequence[Snapshot], bucket: Callable[[Snapshot], int]) -> set[int]:
    first: dict[int, int] = {}
    for snapshot in snapshots:
        first.setdefault(bucket(snapshot), snapshot.version)
    return set(first.values())


def snapshot_name(group: str, version: int) -> str:
    return f"{DIRECTORY}/{group_directory(group)}/{version:012d}"


class PolicyStore:
    """The snapshots of one run directory."""

    def __init__(self, run_dir: Path | str):
        self.run_dir = Path(run_dir).absolute()

    def __repr__(self) -> str:
        return f"PolicyStore({str(self.run_dir)!r})"

    # Queries

    def __iter__(self) -> Iterator[Snapshot]:
        return iter(self.query())

    def __len__(self) -> int:
        return len(self.query())

    def query(
        self, group: str | None = None, tag: str | None = None, version: int | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[Snapshot]:  # fmt: skip
        """The snapshots that match, oldest first.

        `where`: for each name of a metadata entry, a value, or a function of the value that returns whether it
        matches.
        """

        def fits(snapshot: Snapshot) -> bool:
            if tag is not None and tag not in snapshot.tags:
                return False
            if version is not None and snapshot.version != version:
                return False
            return all(
                name in snapshot.metadata and _is_so(snapshot.metadata[name], wanted)
                for name, wanted in (where or {}).items()
            )

        return [snapshot for snapshot in self._all(group) if fits(snapshot)]

    def find(self, tag: str | int, group: str | None = None) -> dict[str, Snapshot]:
        """The snapshots of all groups that a tag, or a version as a number, names."""
        tag, snapshots = str(tag), self._all(group)
        if not snapshots:
            known = self.groups()
            if group is not None and known and group not in known:
                raise UserError(f"{self.run_dir} has no policy of group '{group}'{nearest(group, known)}")
            raise UserError(f"{self.run_dir} has no stored policy yet; the first is written with the first checkpoint")
        found = {s.group: s for s in snapshots if tag in s.tags or f"{s.version:012d}" == tag.zfill(12)}
        if not found:
            known = {t for s in snapshots for t in s.tags} | {str(s.version) for s in snapshots[-3:]}
            note = " (nothing was evaluated yet)" if tag == BEST else ""
            raise UserError(
                f"{self.run_dir} has no policy '{tag[:40]}'{note}{nearest(tag[:40], known)}",
                page="use-a-policy#list-filter-and-tag",
            )
        return found

    def groups(self) -> list[str]:
        names = run_directory.names(self.run_dir, DIRECTORY)
        found = {unquote(name.removeprefix("group-")): name for name in names if name.startswith("group-")}
        return sorted(group for group, name in found.items() if group_directory(group) == name)

    def _all(self, group: str | None = None) -> list[Snapshot]:
        tags = self.tags()
        found: list[Snapshot] = []
        with as_user_error(self.run_dir / DIRECTORY, "read"):
            for each in self.groups() if group is None else [group]:
                found += _tagged(each, self._of_group(each), tags)
        return sorted(found, key=lambda s: (s.env_steps, s.version, s.group))

    def _of_group(self, group: str) -> list[Snapshot]:
        below = f"{DIRECTORY}/{group_directory(group)}"
        found = []
        for name in sorted(run_directory.names(self.run_dir, below)):
            if not VERSION.fullmatch(name):
                continue
            with contextlib.suppress(UserError):  # one that is damaged is as good as not there
                config = policy_directory.read_config(self.run_dir, f"{below}/{name}")
                if config.group == group and name == f"{config.version:012d}":
                    found.append(Snapshot(self.run_dir, config))
        return sorted(found, key=lambda s: (s.env_steps, s.version))

    # Tags

    def tags(self) -> Tags:
        """The user's tags."""
        try:
            found = read_json(self.run_dir, f"{DIRECTORY}/{TAGS}")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{self.run_dir / DIRECTORY / TAGS} cannot be read: {error}") from None
        well_formed = isinstance(found, dict) and all(
            isinstance(tag, str) and isinstance(of, dict) and all(type(v) is int for v in of.values())
            for tag, of in found.items()
        )
        if not well_formed:
            raise UserError(f"{self.run_dir / DIRECTORY / TAGS} holds no tags; was the file edited?")
        return found

    def tag(self, tag: str, version: int | str = LATEST, group: str | None = None) -> dict[str, Snapshot]:
        """Tags a snapshot of each group, or of one: that of a version, or of another tag. Moves a tag that exists."""
        if not TAG.fullmatch(tag) or tag in (LATEST, BEST):
            raise UserError(
                f"tag '{tag[:40]}': expected a letter, then letters, digits, '.', '_' or '-'; {LATEST} and {BEST} are "
                "set by the run"
            )
        with self._locked():
            found = self.find(str(version), group)
            tags = self.tags()
            tags[tag] = {**tags.get(tag, {}), **{each: snapshot.version for each, snapshot in found.items()}}
            self._write_tags(tags)
            return {each: self.find(snapshot.version, each)[each] for each, snapshot in found.items()}

    def untag(self, tag: str) -> None:
        with self._locked():
            tags = self.tags()
            if tag not in tags:
                raise UserError(f"{self.run_dir} has no tag '{tag}'{nearest(tag, tags)}")
            del tags[tag]
            self._write_tags(tags)

    def _write_tags(self, tags: Tags) -> None:
        with as_user_error(self.run_dir / DIRECTORY / TAGS):
            run_directory.replace(self.run_dir, f"{DIRECTORY}/{TAGS}", json.dumps(tags, indent=2).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps the run from removing a snapshot while the user tags it."""
        with as_user_error(self.run_dir / DIRECTORY):
            run_directory.make_directory(self.run_dir, DIRECTORY)
            fd = run_directory.open_to_append(self.run_dir, f"{DIRECTORY}/.lock")
        try:
            deadline = time.monotonic() + 10.0
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise UserError(f"{self.run_dir / DIRECTORY} is in use by another process; try again") from None
                    time.sleep(0.02)
            yield
        finally:
            os.close(fd)

    # Writing: the run's own

    def add(self, config: PolicyConfig, arrays: Mapping[str, np.ndarray]) -> Snapshot:
        """Keeps a snapshot; one of the same group and version is replaced."""
        above, temporary = f"{DIRECTORY}/{group_directory(config.group)}", f"{WRITING}{os.getpid()}"
        target = f"{config.version:012d}"
        config = replace(config, time=config.time or time.time())
        run_directory.make_directory(self.run_dir, above)
        run_directory.remove_tree(self.run_dir, f"{above}/{temporary}")
        run_directory.make_directory(self.run_dir, f"{above}/{temporary}", new=True)
        try:
            config = policy_directory.write(self.run_dir, f"{above}/{temporary}", config, arrays)
            run_directory.remove_tree(self.run_dir, f"{above}/{target}")
            with run_directory.directory(self.run_dir, above) as fd:
                os.rename(temporary, target, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            run_directory.remove_tree(self.run_dir, f"{above}/{temporary}")
        return Snapshot(self.run_dir, config)

    def annotate(self, group: str, version: int, metadata: Mapping[str, Any]) -> None:
        """Adds to a snapshot's metadata, unless it has been removed."""
        for snapshot in self._all(group):
            if snapshot.version == version:
                config = replace(snapshot.config, metadata={**snapshot.config.metadata, **metadata})
                policy_directory.write_config(self.run_dir, snapshot.name, config)

    def prune(self, rule: Retention, pinned: Mapping[str, Collection[int]] = MappingProxyType({})) -> None:
        """Removes snapshots by the retention rule, except for the `pinned` versions of each group."""
        with self._locked():
            tags = self.tags()
            for group in self.groups():
                snapshots = _tagged(group, self._of_group(group), tags)
                kept = {snapshot.version for snapshot in rule.kept(snapshots)}
                kept |= set(pinned.get(group, ()))
                self._remove(s for s in snapshots if s.version not in kept)

    def rewind(self, env_steps: int) -> None:
        """Removes later snapshots, which will be repeated; those that the user has tagged stay."""
        with self._locked():
            later = [s for s in self._all() if s.env_steps > env_steps]
            kept = [s for s in later if set(s.tags) - {LATEST, BEST}]
            for snapshot in kept:
                self.annotate(snapshot.group, snapshot.version, {ABANDONED: True})
            self._remove(s for s in later if s not in kept)

    def _remove(self, snapshots: Iterator[Snapshot]) -> None:
        for snapshot in snapshots:
            run_directory.remove_tree(self.run_dir, snapshot.name)


def _tagged(group: str, snapshots: list[Snapshot], tags: Tags) -> list[Snapshot]:
    """One group's snapshots, oldest first, with all their tags."""
    scored = [s for s in snapshots if s.score is not None]
    best = max(scored, key=lambda s: (s.score, -s.env_steps), default=None)  # of equal ones the first

    def of(snapshot: Snapshot) -> tuple[str, ...]:
        own = [tag for tag, versions in tags.items() if versions.get(group) == snapshot.version]
        own += [BEST] if best is not None and snapshot.version == best.version else []
        return tuple(sorted(own)) + ((LATEST,) if snapshot is newest(snapshots) else ())

    return [replace(snapshot, tags=of(snapshot)) for snapshot in snapshots]


def _is_so(value: Any, wanted: Any) -> bool:
    return bool(wanted(value)) if callable(wanted) else value == wanted
