"""What a run measures: `metrics.jsonl`, TensorBoard events and, where asked for, Weights & Biases.

    with MetricsLog(run_dir) as log:
        while training:
            log.write({"env_steps": 1024, "mean_return": 21.5, "learn/loss": 0.3})

A record is flat: names to numbers, or None where there is none yet.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

from runnel.errors import UserError

Record = dict[str, int | float | None]

FILE: Final = "metrics.jsonl"
EVERY_S: Final = 1.0
"""The file grows by at most a line in this time, and one at the end."""


class MetricsLog:
    """Writes records to every sink, at most one a second and always the last."""

    def __init__(
        self,
        run_dir: Path | str,
        *,
        keep_until_env_steps: int | None = None,
        wandb: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """`keep_until_env_steps`: on resuming, later records are dropped: they will be made again.

        `wandb`: the run's configuration, where it is to be shown at Weights & Biases.
        """
        run_dir = Path(run_dir)
        path = run_dir / FILE
        self._clock = clock
        self._written_at = -math.inf
        self._pending: Record | None = None
        self._curve: list[list[int | float | None]] = []  # steps and mean return of what was not written
        self._sinks: list[_Sink] = []
        # The one that can be missing comes first: nothing is made where it is.
        if wandb is not None:
            self._sinks.append(_WandB(run_dir, wandb))
        with _told_plainly(path):
            if path.exists():
                _repair(path, keep_until_env_steps)
            self._file = path.open("a", encoding="utf-8")
        self._sinks.append(_TensorBoard(run_dir, keep_until_env_steps))
        self._path = path

    def write(self, record: Mapping[str, Any]) -> None:
        """Keeps a record, and writes it unless one was written less than a second ago."""
        self._pending = kept = clean(record)
        self._curve.append([kept.get("env_steps"), kept.get("mean_return")])
        if self._clock() - self._written_at >= EVERY_S:
            self._flush()

    def close(self) -> None:
        """Writes the last record, if it waits, and closes every sink."""
        self._flush()
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        if self._pending is None:
            return
        record, self._pending = self._pending, None
        self._written_at = self._clock()
        # The points since the last line: a run of a few seconds has a curve too.
        between, self._curve = [point for point in self._curve[:-1] if None not in point], []
        with _told_plainly(self._path):
            line = {**record, "curve": between} if between else record
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        for sink in self._sinks:
            sink.write(record)


def read_metrics(run_dir: Path | str) -> list[Record]:
    """The records of a run in order; none where nothing was written yet. A line cut short is left out."""
    path = Path(run_dir) / FILE
    if not path.exists():
        return []
    with _told_plainly(path, "read"):
        lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        record = _parsed(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise UserError(f"{path}: line {number} is no record; delete that line")
    return records


def clean(value: Any) -> Any:
    """A value as JSON has it: plain numbers, and None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): clean(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [clean(part) for part in value]
    if hasattr(value, "item"):  # a scalar of NumPy or JAX
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def write_json_atomically(path: Path | str, value: Any) -> None:
    """Writes a JSON file that is there whole or not at all."""
    text = json.dumps(clean(value), indent=2, allow_nan=False) + "\n"
    write_atomically(Path(path), text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by another in one step that survives a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _told_plainly(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _repair(path: Path, keep_until_env_steps: int | None) -> None:
    """Drops lines cut short, and records later than where the run goes on."""
    content = path.read_bytes()
    limit = math.inf if keep_until_env_steps is None else keep_until_env_steps
    kept = []
    for line in content.splitlines():
        record = _parsed(line)
        if record is not None and (record.get("env_steps") or 0) <= limit:
            kept.append(line + b"\n")
    if b"".join(kept) != content:
        write_atomically(path, b"".join(kept))


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@contextlib.contextmanager
def _told_plainly(path: Path, what: str = "write") -> Iterator[None]:
    """A full disk or a missing right is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {what} {path}: {error.strerror or error}") from error


class _Sink:
    """Where records go besides the file."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class _TensorBoard(_Sink):
    def __init__(self, run_dir: Path, keep_until_env_steps: int | None):
        from tensorboardX import SummaryWriter

        # TensorBoard hides events at and after the step it is told to purge from.
        purge = None if keep_until_env_steps is None else keep_until_env_steps + 1
        with _told_plainly(run_dir):
            # The file is named by the second: a run resumed within it would overwrite what went before.
            self._writer = SummaryWriter(
                str(run_dir), purge_step=purge, filename_suffix=f".{time.time_ns()}", flush_secs=10
            )

    def write(self, record: Record) -> None:
        step = int(record.get("env_steps") or 0)
        for name, value in record.items():
            if value is not None and name != "env_steps":
                tag = name if "/" in name else f"run/{name}"
                self._writer.add_scalar(tag, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _WandB(_Sink):
    def __init__(self, run_dir: Path, config: Mapping[str, Any]):
        check_wandb()
        import wandb

        # One page per run directory, however often it is resumed.
        identity = run_dir / ".wandb-id"
        with _told_plainly(identity):
            if not identity.exists():
                identity.write_text(uuid.uuid4().hex[:12])
            page = identity.read_text().strip()
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


def check_wandb() -> None:
    """Refuses early where W&B is not installed."""
    import importlib.util

    if importlib.util.find_spec("wandb") is None:
        raise UserError("--wandb needs Weights & Biases; run: pip install 'runnel[wandb]'")
