"""What `runnel policies` prints, and the conditions it takes."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runnel.config import settings
from runnel.errors import UserError
from runnel.recording.policy_store import BEST, LATEST, PolicyStore, Snapshot
from runnel.reporting.number_words import short

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "=": operator.eq,
}  # fmt: skip


def conditions(texts: Sequence[str]) -> dict[str, Callable[[Any], bool]]:
    """`eval/return>=400` as a condition on an entry of the metadata."""
    found: dict[str, Callable[[Any], bool]] = {}
    for text in texts:
        match = re.fullmatch(r"([^<>=]+)(>=|<=|=|>|<)(.+)", text)
        if match is None:
            raise UserError(f"--where {text}: expected NAME=VALUE, or >=, <=, > or < with a number")
        name, compare, value = match[1].strip(), _COMPARE[match[2]], settings.literal(match[3].strip())
        before = found.get(name, lambda x: True)
        found[name] = lambda x, compare=compare, value=value, before=before: before(x) and _compared(compare, x, value)
    return found


def _compared(compare: Callable[[Any, Any], bool], found: Any, value: Any) -> bool:
    try:
        return compare(found, value)
    except TypeError:
        return False


def query(
    store: PolicyStore, group: str | None, tag: str, version: int | None, where: Mapping[str, Any]
) -> list[Snapshot]:
    """The snapshots that fit. A tag, or a version in its place, must be there; `latest` and `best` need not be yet."""
    named = {} if tag in ("", LATEST, BEST) else store.find(tag, group)
    if not named:
        return store.query(group, tag or None, version, where)
    return [
        s for s in store.query(group, None, version, where) if s.group in named and named[s.group].version == s.version
    ]


def tag(store: PolicyStore, found: Sequence[Snapshot], name: str) -> list[Snapshot]:
    """Tags the newest of each group among those found."""
    if not found:
        raise UserError(f"--tag {name}: no policy was found to tag")
    newest = {snapshot.group: snapshot for snapshot in found}
    tagged = [store.tag(name, snapshot.version, group)[group] for group, snapshot in newest.items()]
    return [store.query(snapshot.group, version=snapshot.version)[0] for snapshot in tagged]


def lines(found: Sequence[Snapshot], run_dir: Path) -> list[str]:
    if not found:
        return [f"{run_dir} has no such policy"]
    several = len({snapshot.group for snapshot in found}) > 1
    head = ["version", "steps", "time", "eval", "tags"]
    rows = [
        [
            str(snapshot.version),
            f"{snapshot.env_steps:,}",
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.config.time)),
            "-" if snapshot.score is None else short(snapshot.score),
            ", ".join(snapshot.tags),
        ]
        for snapshot in found
    ]
    if several:
        head.insert(0, "group")
        for row, snapshot in zip(rows, found, strict=True):
            row.insert(0, snapshot.group)
    widths = [max(len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    ]


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "group": snapshot.group,
        "version": snapshot.version,
        "env_steps": snapshot.env_steps,
        "time": snapshot.config.time,
        "tags": list(snapshot.tags),
        "metadata": dict(snapshot.metadata),
        "path": str(snapshot.path),
    }
