"""Finds, creates and locks a run's directory."""

from __future__ import annotations

import contextlib
import os
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from runnel.algorithm import algorithm_name
from runnel.errors import UserError
from runnel.execution.building import BuiltRun
from runnel.recording import members_file, requests, run_directory, run_lock, sweep_file
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.files import as_user_error, check_layout


def fresh_directory(run_dir: str | Path | None, built: BuiltRun, seed: int) -> tuple[Path, list[Path]]:
    """A directory for the run, and the directories created for it; refuses one that already holds a run."""
    if run_dir is None:
        slug = re.sub(
            r"[^A-Za-z0-9.]+", "-", f"{algorithm_name(built.algorithm).lower()}-{built.graph.spec.name}-{seed}"
        )
        run_dir = Path("runs") / f"{slug}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    directory = Path(run_dir)
    if any(unicodedata.category(sign) == "Cc" for sign in str(directory)):
        raise UserError(
            f"found run_dir={str(directory)!r}, which has a line break or another control character; "
            "choose a name that fits into one line",
            keywords=("run_dir",),
        )
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write a run into {directory}: {error.strerror}; choose another run_dir=", keywords=("run_dir",)
        ) from None
    run_lock.check_free(directory)
    refuse_held(directory)
    return directory, made


def refuse_held(directory: Path) -> None:
    if sweep_file.holds_sweep(directory):
        raise UserError(
            f"{directory} already holds a sweep; continue it with `runnel resume {directory}`, or choose another "
            "run_dir=",
            keywords=("run_dir",),
            page="troubleshooting#resume-is-refused",
        )
    if members_file.holds_members(directory):
        raise UserError(
            f"{directory} already holds several runs; continue them with `runnel resume {directory}`, or choose "
            "another run_dir=",
            keywords=("run_dir",),
            page="troubleshooting#resume-is-refused",
        )
    held = [
        name
        for name in ("config.json", "metrics.jsonl", "checkpoints", "result.json")
        if run_directory.exists(directory, name)
    ]
    with as_user_error(directory, "write a run into"):
        resumable = bool(Checkpoints(directory).all())
    if held and not resumable:
        raise UserError(
            f"{directory} holds a run without a checkpoint ({', '.join(held)}): remove the directory or choose "
            "another run_dir=",
            keywords=("run_dir",),
            page="troubleshooting#resume-is-refused",
        )
    if held:
        raise UserError(
            f"{directory} already holds a run ({', '.join(held)}); continue it with `runnel resume {directory}`, "
            "or choose another run_dir=",
            keywords=("run_dir",),
            page="troubleshooting#resume-is-refused",
        )


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[list[str]]:
    """Holds the lock of a run's directory, and refuses one that a run could not write into properly.

    Yields warnings for the user.
    """
    check_layout(directory)
    notes: list[str] = []
    with run_lock.hold(directory, notes.append):
        requests.clear(directory)
        yield notes


@contextlib.contextmanager
def cleared(made: Sequence[Path]) -> Iterator[None]:
    """Removes directories created for a run that was refused, while its lock is held."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if made and os.listdir(made[0]) == [run_lock.FILE]:
                (made[0] / run_lock.FILE).unlink()
                for path in made:
                    path.rmdir()  # refuses one that is not empty
        raise
