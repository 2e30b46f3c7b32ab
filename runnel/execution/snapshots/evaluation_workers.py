"""Processes that evaluate while training continues.

Each worker plays its share of the episodes of one snapshot. If snapshots arrive faster than they are played, only the
newest is played; the others are skipped and counted. A worker that dies, raises or hangs is replaced. On a cluster,
evaluation workers run where CPUs are free; those of a lost machine are started again elsewhere.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import jax
import numpy as np

from runnel.errors import MalformedMessage
from runnel.execution.snapshots.evaluation_messages import BETWEEN, EpisodesPlayed, Evaluate, StepsPlayed, parse_report
from runnel.execution.snapshots.evaluation_task import EvaluationTask
from runnel.execution.snapshots.evaluators import Evaluated
from runnel.launch.local_launcher import WorkerCommand
from runnel.launch.standalone import StandaloneLauncher, StandaloneWorker
from runnel.planning.plan import EVALUATOR
from runnel.recording.events import ReportEvent
from runnel.runtime.control_messages import Failed
from runnel.runtime.programs.snapshots import TakenSnapshot
from runnel.runtime.single_process.evaluation import PlayedEpisodes

MOST_TRIES: Final = 3
"""The number of attempts to evaluate one snapshot."""

COMPILE_S: Final = 300.0
"""The seconds that a worker may take to start and compile, on top of the limit for hangs."""


class _Share:
    """One worker and its share of the environments."""

    def __init__(self, name: str, quota: dict[int, int]):
        self.name, self.quota = name, quota
        self.process: StandaloneWorker | None = None
        self.host = ""  # the machine that it was started on last
        self.heard = 0.0  # when it last sent something
        self.working: int | None = None  # the number of what it plays
        self.played: PlayedEpisodes | None = None
        self.warm = False  # has played before: everything is compiled


class EvaluationWorkers:
    """Processes that each play a share of the episodes of one snapshot; one that is lost is replaced."""

    def __init__(
        self, task: EvaluationTask, workers: int, logs: Path, hang_after_s: float, report_event: ReportEvent,
        launcher: Callable[[], StandaloneLauncher],
    ):  # fmt: skip
        """`launcher` creates the launcher of the processes, when the first is needed."""
        self.task, self.logs, self.hang_after_s, self.report_event = task, logs, hang_after_s, report_event
        self.skipped, self.steps = 0, 0
        quota = task.quota()
        workers = max(1, min(workers, len(quota)))
        self._shares = [
            _Share(f"{EVALUATOR}-{w}", {index: count for index, count in quota.items() if index % workers == w})
            for w in range(workers)
        ]
        self._make_launcher = launcher
        self._launcher: StandaloneLauncher | None = None
        self._waiting: list[tuple[TakenSnapshot, bool]] = []
        self._now: TakenSnapshot | None = None
        self._number, self._tries, self._began = 0, 0, 0.0
        self._done: list[Evaluated] = []

    @property
    def hosts(self) -> Mapping[str, str]:
        return {share.name: share.host for share in self._shares if share.host}

    # What is asked for

    def submit(self, snapshot: TakenSnapshot, must: bool = False) -> None:
        kept = [(each, needed) for each, needed in self._waiting if needed]
        passed_over = len(self._waiting) - len(kept)
        self.skipped += passed_over
        if passed_over:
            reason = f"{self.skipped} snapshots were skipped: evaluation is slower than training"
            first = self.skipped == passed_over
            self.report_event("evaluation", reason=reason, action="the newest is evaluated", show=first)
        self._waiting = [*kept, (snapshot, must)]
        self._begin_next()

    def poll(self) -> list[Evaluated]:
        """Returns finished evaluations. May raise `HostLost`; evaluations finished by then are returned by the next
        call."""
        if self._launcher is not None:
            self._launcher.listen()
        if self._now is not None:
            for share in self._shares:
                self._look_at(share)
            if self._now is not None and all(share.played is not None for share in self._shares):
                self._finish(self._joined(), "")
        self._begin_next()
        done, self._done = self._done, []
        return done

    def all_play(self) -> bool:
        """Whether every worker has begun to play."""
        return all(share.warm for share in self._shares)

    def busy(self) -> bool:
        return self._now is not None or bool(self._waiting)

    def rewind(self, env_steps: int) -> None:
        self._done = [done for done in self._done if done.snapshot.env_steps <= env_steps]
        self._waiting = [(each, must) for each, must in self._waiting if each.env_steps <= env_steps]
        if self._now is not None and self._now.env_steps > env_steps:
            self._now = None
            for share in self._shares:  # their results have a number that is no longer expected
                share.working = None

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None

    # One evaluation

    def _begin_next(self) -> None:
        if self._now is None and self._waiting:
            (self._now, _), *self._waiting = self._waiting
            self._number += 1
            self._tries, self._began = 1, time.monotonic()
            for share in self._shares:
                share.played = None
                self._send(share)

    def _send(self, share: _Share) -> None:
        assert self._now is not None
        process = share.process or self._start(share)
        arrays = {f"{g}{BETWEEN}{name}": a for g, own in self._now.arrays.items() for name, a in own.items()}
        share.working, share.heard = self._number, time.monotonic()
        with contextlib.suppress(BrokenPipeError, TimeoutError):  # `_look_at` notices that it has ended
            process.control.send_arrays(Evaluate(self._number).to_json(), arrays)

    def _look_at(self, share: _Share) -> None:
        process = share.process
        if share.working is None or process is None:
            return
        problem = self._receive(share, process)
        if share.working is None:
            return
        limit_s = self.hang_after_s + (0.0 if share.warm else COMPILE_S)
        if process.machine_lost():
            return self._move(share)
        if not process.reachable():  # after a short interruption of the network it continues
            share.heard = time.monotonic()
        if not problem and process.exit_status() is not None:
            problem = f"ended with status {process.exit_status()}"
        if not problem and time.monotonic() > share.heard + limit_s:
            problem = f"sent no heartbeat for {limit_s:.0f} s"
        if problem:
            self._lost(share, process, problem)

    def _receive(self, share: _Share, process: StandaloneWorker) -> str:
        """Processes all messages of a worker; returns why it is lost, if it is."""
        try:
            while (message := process.control.receive()) is not None:
                share.heard = time.monotonic()
                match parse_report(message.value):
                    case StepsPlayed():
                        share.warm = True
                    case EpisodesPlayed(number, notes) if number == share.working:
                        share.played, share.working, share.warm = _played(message.arrays, notes), None, True
                        return ""
                    case Failed(error, text):
                        return f"raised {error}: {text.splitlines()[0] if text else ''}"
        except MalformedMessage as error:
            return f"sent what it should not: {error}"
        return ""

    def _move(self, share: _Share) -> None:
        """Repeats a share elsewhere after its machine was lost, which does not count as a failed attempt."""
        lost = share.host
        share.process, share.warm = None, False
        self._send(share)
        reason, action = f"was on {lost}, which is lost", f"started again: {share.host}"
        self.report_event("evaluator", worker=share.name, reason=reason, action=action)

    def _lost(self, share: _Share, process: StandaloneWorker, problem: str) -> None:
        tail = process.tail().strip()
        process.close()
        share.process, share.working, share.warm = None, None, False
        gives_up = self._tries >= MOST_TRIES
        action = "its evaluation is given up" if gives_up else "replaced"
        self.report_event("evaluator", worker=share.name, reason=problem, action=action, detail=tail[-2000:])
        if gives_up:
            for other in self._shares:  # they play in vain
                if other.process is not None and other.working is not None:
                    other.process.close()
                    other.process, other.working, other.warm = None, None, False
            self._finish(None, f"{share.name} {problem}")
        else:
            self._tries += 1
            self._send(share)

    def _finish(self, played: PlayedEpisodes | None, problem: str) -> None:
        assert self._now is not None
        self._done.append(Evaluated(self._now, played, time.monotonic() - self._began, problem))
        self._now = None

    def _joined(self) -> PlayedEpisodes:
        """The shares' episodes in the order of a single evaluator."""
        where: dict[tuple[int, int], tuple[PlayedEpisodes, int]] = {}
        for share in self._shares:
            assert share.played is not None
            indices = sorted(share.quota)
            rounds = range(max(share.quota.values()))
            order = [(k, index) for k in rounds for index in indices if k < share.quota[index]]
            for place, at in enumerate(order):
                where[at] = (share.played, place)
        parts = [where[at] for at in sorted(where)]
        names = dict.fromkeys(name for share in self._shares for name in (share.played or parts[0][0]).metrics)
        return PlayedEpisodes(
            {group: np.array([p.returns[group][k] for p, k in parts]) for group in parts[0][0].returns},
            np.array([p.lengths[k] for p, k in parts]),
            {name: np.array([_at(p.metrics, name, k) for p, k in parts]) for name in names},
            np.array([p.learner_returns[k] for p, k in parts]),
            tuple(note for share in self._shares for note in (share.played.notes if share.played else ())),
        )  # fmt: skip

    def _start(self, share: _Share) -> StandaloneWorker:
        if self._launcher is None:
            self._launcher = self._make_launcher()
        x64 = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
        job = {"task": self.task.to_json(), "quota": {str(k): n for k, n in share.quota.items()}, "x64": x64}
        environ = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1" if x64 else "0", "NPROC": "1", "PJRT_NPROC": "1"}
        command = WorkerCommand(
            share.name, "runnel.execution.snapshots.evaluation_worker:main", job, environ=environ,
            log=self.logs / f"{share.name}.log",
        )  # fmt: skip
        process = self._launcher.start(command)
        share.process, share.host, share.warm = process, process.host, False
        return process


def _at(metrics: Mapping[str, np.ndarray], name: str, place: int) -> float:
    return float(metrics[name][place]) if name in metrics else np.nan


def _played(arrays: Mapping[str, np.ndarray], notes: list[str]) -> PlayedEpisodes:
    returns, metrics, whole = {}, {}, {}
    for name, array in arrays.items():
        kind, _, rest = name.partition(BETWEEN)
        if kind == "return":
            returns[rest] = np.array(array)
        elif kind == "metric":
            metrics[rest] = np.array(array)
        else:
            whole[kind] = np.array(array)
    return PlayedEpisodes(returns, whole["length"], metrics, whole["learner"], tuple(notes))
