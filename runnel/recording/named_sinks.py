"""Sinks by name: those of installed packages, of which Runnel is one, and the user's own.

A name stands for a callable that is given the run directory and the run's configuration, and returns a `Sink`. A
package offers one by an entry point of the group `runnel.sinks`, as Runnel's `pyproject.toml` does for MLflow and
Trackio; the user's own is `package.module:callable`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from runnel.config import serialization
from runnel.errors import NotInstalled, UserError, a, nearest
from runnel.recording.sinks import Sink, check_sinks
from runnel.system import startup

SinkMaker = Callable[[Path, Mapping[str, Any]], Sink]

GROUP: Final = "runnel.sinks"
"""Of the entry points by which installed packages offer sinks."""

OURS: Final = "runnel"
"""The package whose sinks come before others of the same name."""


@functools.cache
def offered() -> Mapping[str, metadata.EntryPoint]:
    """By name: sinks of installed packages, Runnel's before others. Packages do not change while a process runs."""
    entries = sorted(metadata.entry_points(group=GROUP), key=lambda entry: _package(entry) == OURS)
    return {entry.name: entry for entry in entries}


def names() -> list[str]:
    """Every name that is not an import path."""
    return sorted(offered())


def maker(name: str) -> SinkMaker:
    """What makes the sink of that name; refused in words where there is none, or where its library is missing."""
    if name in offered():
        try:
            found: Any = offered()[name].load()
        except Exception as problem:
            raise _cannot_be_imported(offered()[name], problem) from problem
    elif ":" in name:
        found = serialization.import_object(name)
    else:
        registered = any(_package(entry) == OURS for entry in offered().values())
        again = "" if registered else "; Runnel's own are not registered: install it again, pip install -e ."
        raise UserError(
            f"there is no sink '{name}'{nearest(name, names())}; your own is package.module:callable{again}",
            page="prometheus#trackers",
        )
    if not callable(found):
        raise UserError(f"the sink {name} is {a(found)}; expected a callable that takes a run directory and its config")
    return cast(SinkMaker, found)


def check(sinks: Sequence[Any]) -> None:
    """Refuses, before anything starts, what is neither a sink nor the name of one."""
    if isinstance(sinks, str):
        raise UserError(f"sinks: found text '{sinks}', expected a list of sinks; use sinks=[{sinks!r}]")
    check_sinks([sink for sink in sinks if not isinstance(sink, str)] if isinstance(sinks, Sequence) else sinks)
    for sink in sinks:
        if isinstance(sink, str):
            maker(sink)


def made(sinks: Sequence[Sink | str], run_dir: Path, config: Mapping[str, Any]) -> list[Sink]:
    """The sinks themselves. Where one cannot be made, those before it that were made here are closed."""
    with contextlib.ExitStack() as undo:
        found: list[Sink] = []
        for sink in sinks:
            if isinstance(sink, str):
                sink = _made(sink, run_dir, config)
                undo.callback(sink.close)
            found.append(sink)
        undo.pop_all()
        return found


def _made(name: str, run_dir: Path, config: Mapping[str, Any]) -> Sink:
    startup.phase(f"connecting to {name}")
    try:
        sink: Any = maker(name)(run_dir, config)
    except UserError:
        raise
    except Exception as problem:
        reason = str(problem).strip().splitlines()[0].rstrip(".") if str(problem).strip() else type(problem).__name__
        raise UserError(
            f"the sink {name} cannot start: {reason}; correct that, or train without it", page="prometheus#trackers"
        ) from problem
    if isinstance(sink, type) or not isinstance(sink, Sink):
        raise UserError(f"the sink {name} returned {a(sink)}; expected an object with write(record), close()")
    return sink


def _cannot_be_imported(entry: metadata.EntryPoint, problem: Exception) -> UserError:
    """A package's extra with the name of the sink installs what the sink imports."""
    extras = entry.dist.metadata.get_all("Provides-Extra") if entry.dist else None
    if isinstance(problem, ModuleNotFoundError) and entry.name in (extras or ()):
        return NotInstalled(f"the sink {entry.name}", f"'{problem.name}'", entry.name, package=_package(entry))
    return UserError(f"the sink {entry.name} of the installed package {_package(entry)} cannot be imported: {problem}")


def _package(entry: metadata.EntryPoint) -> str:
    return "?" if entry.dist is None else entry.dist.name
