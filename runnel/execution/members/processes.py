"""Members in separate processes, on this machine or on those of a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Self

from runnel.config import serialization
from runnel.errors import UserError
from runnel.execution.building import rebuild
from runnel.execution.members.backend import Standing, WaitingMember
from runnel.execution.members.member_memory import side_by_side
from runnel.execution.members.member_run import MemberJob, MemberSettings
from runnel.execution.supervision.machine_pool import check_workers
from runnel.planning.machine import Machine
from runnel.recording import requests
from runnel.recording.metrics import last_metrics
from runnel.system import startup


class MemberProcesses:
    """Trains each member in a process, which starts the member's workers."""

    def __init__(
        self, waiting: Sequence[WaitingMember], at_a_time: int, steps: int | None, trust: Collection[str],
        launcher: str = "local", address: str | None = None, cpus_per_host: int | None = None, note: str = "",
    ):  # fmt: skip
        """`cpus_per_host`: what each member takes of a machine of a Ray cluster. None: all that is free. `note`: what
        decides how many train at a time."""
        self._waiting, self._at_a_time = list(waiting), at_a_time
        self._settings = MemberSettings(steps, tuple(trust), launcher, address, cpus_per_host)
        self._running: dict[int, tuple[WaitingMember, subprocess.Popen[bytes]]] = {}
        self._news: list[str] = []
        self._stopped: int | None = None
        self.notes = [note or f"{at_a_time} members at a time"] if waiting else []

    @classmethod
    def of(
        cls, waiting: Sequence[WaitingMember], steps: int | None, trust: Collection[str], launcher: str,
        address: str | None,
    ) -> Self:  # fmt: skip
        built = rebuild(waiting[0].directory, waiting[0].config, trusted=trust)
        for member in waiting:
            for part in ("algorithm", "environment"):
                why = serialization.reason(member.config[part])
                if why is not None:
                    raise UserError(f"{member.directory}: another process cannot make the {part}: {why}")
        check_workers(built.plan)
        if launcher == "ray" and built.plan.workers > 1:
            from runnel.launch import ray_launcher

            startup.phase("connecting to the Ray cluster")
            machines = ray_launcher.machines(address)
            at_a_time, share = on_cluster(built.plan.workers, [machine.cpus for machine in machines], len(waiting))
            return cls(waiting, at_a_time, steps, trust, launcher, address, share)
        at_a_time, note = side_by_side(built, Machine.here(), len(waiting))
        return cls(waiting, at_a_time, steps, trust, launcher, address, note=note)

    def advance(self) -> None:
        for index, (member, process) in list(self._running.items()):
            status = process.poll()
            if status is not None:
                del self._running[index]
                if status not in (0, None):
                    self._news.append(f"{member.directory.name} failed (status {status}); see {_log(member)}")
        while self._waiting and len(self._running) < self._at_a_time and self._stopped is None:
            member = self._waiting.pop(0)
            process = self.start(member)
            self._running[member.number] = (member, process)
            if self._stopped is not None:  # a signal was received while it was started
                _signal(process, self._stopped)
        if self._stopped is not None:
            self._waiting = []

    def wait(self, seconds: float) -> None:
        for _, process in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            return

    def over(self) -> bool:
        return not self._running and not self._waiting

    def standing(self) -> dict[int, Standing]:
        found = {}
        for index, (member, _) in self._running.items():
            with contextlib.suppress(UserError, OSError):
                last = last_metrics(member.directory)
                found[index] = Standing(
                    int(last.get("env_steps") or 0), last.get("mean_return"), last.get("steps_per_second")
                )
        return found

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def stop(self, number: int) -> None:
        self._stopped = number
        for _, process in self._running.values():
            _signal(process, number)

    def ask_for_checkpoint(self) -> None:
        for member, _ in self._running.values():
            with contextlib.suppress(OSError):
                requests.ask(member.directory, requests.CHECKPOINT)

    def abort(self) -> None:
        for _, process in self._running.values():
            _signal(process, signal.SIGKILL)

    def close(self) -> None:
        self.abort()
        for _, process in self._running.values():
            process.wait()

    def start(self, member: WaitingMember) -> subprocess.Popen[bytes]:
        """Starts the process of a member."""
        job = MemberJob(str(member.directory.absolute()), os.getpid(), self._settings)
        log = _log(member)
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "runnel.execution.members.member_run"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # this process passes on signals of the terminal, once
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(job.to_json()).encode())
        return process


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _log(member: WaitingMember) -> Path:
    return member.directory.parent / "logs" / f"{member.directory.name}.log"


def on_cluster(workers: int, cpus: Sequence[int], members: int) -> tuple[int, int | None]:
    """The number of runs of `workers` workers that a cluster holds, and the CPUs of each machine that one run takes.

    `cpus`: the free CPUs of each machine. The more CPUs a run takes on each machine, the fewer machines it needs; all
    runs take the same number. A run that fits only once may take all.
    """
    found: tuple[int, int | None] = (1, None)
    for share in range(1, max(cpus, default=0) + 1):
        holding = [free // share for free in cpus if free >= share]
        whole = min(holding, default=0)
        if share * len(holding) >= workers and min(whole, members) > found[0]:
            found = (min(whole, members), share)
    return found
