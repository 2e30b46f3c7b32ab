"""Sinks: receivers of a run's metrics besides `metrics.jsonl`. TensorBoard, Weights & Biases, and a user's own.

class Printer:
    def write(self, record):
        print(record["env_steps"], record["mean_return"])

    def close(self):
        print("the run has ended")

runnel.train("ppo", "CartPole-v1", sinks=[Printer()])
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from runnel.errors import NotInstalled, UserError
from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error, clean
from runnel.system import startup
from runnel.user_code import named_modules

WANDB_ID: Final = ".wandb-id"

Record = dict[str, int | float | None]


@runtime_checkable
class Sink(Protocol):
    """A receiver of metrics. Any object with these two methods is one; it need not inherit from this class.

    Both are called from the main thread of the process that called `train`: a sink that blocks delays training or, with
    several workers, their supervision. An exception of a sink never ends the run: the first of consecutive failures is
    recorded in `events.jsonl`, and later records are written as usual.
    """

    def write(self, record: Record) -> None:
        """One line of metrics: flat, names to numbers or None. At most one a second, and the last one of the run.

        Records differ in their names: `learn/*`, `return/*` and `env/*` appear only where there is a value.
        `env_steps` increases, except after a rollback to a checkpoint: see `RewindableSink`.
        """
        ...

    def close(self) -> None:
        """The run has ended, with or without an error. Called once, after the last `write`."""
        ...


@runtime_checkable
class RewindableSink(Sink, Protocol):
    """A sink that can drop records: the run returned to a checkpoint, or resumes from one, and repeats the later
    ones."""

    def rewind(self, env_steps: int) -> None:
        """Drops the records later than `env_steps`."""
        ...


def check_sinks(sinks: Sequence[Any]) -> None:
    """Refuses, before anything starts, objects that are not sinks."""
    if not isinstance(sinks, Sequence):
        raise UserError(f"sinks: found {type(sinks).__name__}, expected a list of sinks; use sinks=[...]")
    for sink in sinks:
        if isinstance(sink, type):
            raise UserError(f"sinks: found the class {sink.__name__}, expected an object; use {sink.__name__}()")
        if not isinstance(sink, Sink):
            raise UserError(f"sinks: found {type(sink).__name__}, expected an object with write(record) and close()")


class TensorBoard:
    """TensorBoard's event files.

    Only the messages of tensorboardX are used. Its own writer has a thread behind a queue; if the disk is full, the
    thread dies, the queue fills, and the run hangs.
    """

    def __init__(self, run_dir: Path, keep_until_env_steps: int | None):
        # The file is named by more than the second: a run resumed within it would overwrite what went before.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
        with as_user_error(run_dir):
            self._file = AppendOnlyFile(run_dir / name)
        with contextlib.suppress(OSError):
            self._put(file_version="brain.Event:2")
            if keep_until_env_steps is not None:
                self.rewind(keep_until_env_steps)

    def write(self, record: Record) -> None:
        from tensorboardX.summary import scalar

        values: list[Any] = []
        for name, value in record.items():
            if value is not None and name != "env_steps":
                values += scalar(name if "/" in name else f"run/{name}", value).value
        self._put(step=int(record.get("env_steps") or 0), summary={"value": values})

    def rewind(self, env_steps: int) -> None:
        """TensorBoard hides earlier events at and after the step at which a session starts."""
        self._put(step=env_steps + 1, session_log={"status": "START"})

    def close(self) -> None:
        self._file.close()

    def _put(self, **fields: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboardX.record_writer import masked_crc32c

        message = Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(message))
        checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, message)]
        self._file.write(length + checks[0] + message + checks[1])


class WandB:
    """A page at Weights & Biases."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]):
        check_wandb()
        _refuse_settings()
        startup.phase("connecting to Weights & Biases")
        import wandb

        # One page per run directory, however often it is resumed.
        with as_user_error(run_dir / WANDB_ID):
            if not run_directory.exists(run_dir, WANDB_ID):
                run_directory.replace(run_dir, WANDB_ID, uuid.uuid4().hex[:12].encode())
            page = run_directory.read(run_dir, WANDB_ID, 128).decode(errors="replace").strip()
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "runnel"),
                id=page,
                name=run_dir.resolve().name,
                dir=str(run_dir),
                config=clean(config),
                resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            )
        except Exception as error:
            reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise UserError(
                f"Weights & Biases cannot start: {reason}; run `wandb login`, set WANDB_MODE=offline, "
                "or train without --wandb"
            ) from error
        # Steps go back when a run is resumed, which W&B's own step may not.
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, record: Record) -> None:
        self._run.log({name: value for name, value in record.items() if value is not None})

    def close(self) -> None:
        self._run.finish()


def _refuse_settings() -> None:
    """Refuses to use W&B in a run directory with W&B settings.

    W&B reads its settings, and the server that it sends the user's key to, from the working directory. Only the author
    of a run directory can have put them there, and a run directory may be untrusted.
    """
    for found in ("wandb/settings", ".wandb"):
        run_dir = named_modules.run_directory_of(os.curdir) if os.path.lexists(found) else None
        if run_dir is not None:
            raise UserError(
                f"found {found} in the working directory, which is that of the run {run_dir}: Weights & Biases would "
                "take its settings from there; remove it, or start from another directory"
            )


def check_wandb() -> None:
    """Refuses early where W&B is not installed."""
    import importlib.util

    if importlib.util.find_spec("wandb") is None:
        raise NotInstalled("--wandb", "Weights & Biases", "wandb")
