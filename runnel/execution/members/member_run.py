"""Begins or continues one member of several runs, from its own directory.

A member's directory has its config.json from the beginning. `run_member` runs it in a program with others, in a
separate process, or alone later.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runnel.config import json_messages, run_config
from runnel.config.json_messages import JsonMessage
from runnel.config.run_config import RunConfig
from runnel.execution.building import BuiltRun, read_config, rebuild
from runnel.execution.policies.warm_start import record_matched, warm_start
from runnel.execution.run import Run, read_result
from runnel.execution.run_directories import alone
from runnel.execution.session.session import Session, SharedParts
from runnel.execution.supervision.machine_pool import SingleMachine
from runnel.execution.training import changed, described, noted, settle, with_signature
from runnel.recording.checkpoint import Checkpoints
from runnel.system import parent
from runnel.system.exits import contained


@dataclass(frozen=True)
class MemberSettings:
    """Settings of `run_member` that all members share."""

    steps: int | None
    trust: tuple[str, ...]
    launcher: str
    address: str | None
    cpus_per_host: int | None


@dataclass(frozen=True)
class MemberJob(JsonMessage):
    """The job of a process that runs one member; it reads this from its standard input."""

    directory: str
    parent: int
    """The process that this one ends with."""
    settings: MemberSettings


def member_config(directory: Path, steps: int | None = None) -> tuple[dict[str, Any], RunConfig]:
    """A member's configuration, and the arguments of this call."""
    config = read_config(directory)
    run_config.check_complete(directory / "config.json", config)
    return config, changed(run_config.from_json(config), steps, None, read_result(directory))


def run_member(
    directory: Path, *, steps: int | None = None, trust: Collection[str] = (), launcher: str = "local",
    address: str | None = None, began: float | None = None, cpus_per_host: int | None = None,
) -> Run:  # fmt: skip
    """Trains a member in this process, alone. `cpus_per_host`: of each machine of a Ray cluster; None: all."""
    config, asked = member_config(directory, steps)
    with contained(), contextlib.ExitStack() as stack:
        built, pool = settle(
            stack, launcher, address, None, config["distribution"], config["environment"]["name"],
            lambda: rebuild(directory, config, trusted=trust), cpus_per_host,
        )  # fmt: skip
        return stack.enter_context(member_session(directory, asked, built, began, pool=pool)).run()


@contextlib.contextmanager
def member_session(
    directory: Path, asked: RunConfig, built: BuiltRun, began: float | None = None, pool: Any = None,
    shared: SharedParts | None = None,
) -> Iterator[Session]:  # fmt: skip
    """The session of a member, with exclusive use of its directory."""
    with alone(directory) as notes:
        checkpoints = Checkpoints(directory)
        resumed = checkpoints.newest() is not None
        if not resumed and checkpoints.all():  # none of them is whole: it does not begin again by itself
            raise checkpoints.none_whole()
        initial: Mapping[str, Any] = {}
        if not resumed:
            initial, more, matched = warm_start(built, asked.seed, asked.init_from, asked.frozen)
            notes = [*notes, *more]
            record_matched(directory, matched)
        config = run_config.to_json(asked, described(built))
        built = with_signature(config, noted(built, notes), directory)
        yield Session(
            directory, config, built, began=time.monotonic() if began is None else began, quiet=True, resumed=resumed,
            pool=pool or SingleMachine(), initial=initial, shared=shared,
        )  # fmt: skip


def main() -> int:
    """The process of one member; its job is read from standard input."""
    from runnel.config.jax_config import configure_jax
    from runnel.errors import UserError

    job: MemberJob = json_messages.parse(json.load(sys.stdin), MemberJob)
    parent.end_with(job.parent)
    configure_jax()
    own = job.settings
    try:
        result = run_member(
            Path(job.directory), steps=own.steps, trust=own.trust, launcher=own.launcher, address=own.address,
            cpus_per_host=own.cpus_per_host,
        ).result  # fmt: skip
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if result["status"] in ("finished", "interrupted") else 1


if __name__ == "__main__":
    sys.exit(main())
