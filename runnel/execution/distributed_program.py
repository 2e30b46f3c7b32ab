"""A plan of several workers at work: a program like any other to a session, whatever happens to the workers.

`run` comes back from time to time while the workers go on. One that dies, hangs or raises is replaced: alone where
nobody else need notice, from its journal; else `StateLost` says that all must go back to a checkpoint, which `load`
does while whoever lives stays.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel.config import run_config
from runnel.environment import is_traceable
from runnel.errors import MalformedMessage, OutOfDescriptors, StateLost, WorkerFailed
from runnel.execution.building import BuiltRun
from runnel.execution.fault_policy import (
    DeadlockDetector,
    Fault,
    HeartbeatMonitor,
    RestartBudget,
    ended,
    hung,
    patiently,
    raised,
    replaceable,
    stuck,
    to_blame,
)
from runnel.execution.hang_watch import HELD_S, SHOWN_S
from runnel.execution.progress import ProgressAggregator
from runnel.execution.worker_group import WorkerGroup
from runnel.launch.site import Site
from runnel.planning.channels import WorkerSpec, derive_channels
from runnel.planning.machine import HERE
from runnel.planning.pace import staleness_in_iterations
from runnel.planning.plan import Machine, learns
from runnel.recording.events import ReportEvent, ignore_event
from runnel.runtime.control_messages import (
    Command,
    Event,
    Failed,
    Go,
    Load,
    Pause,
    Paused,
    Phase,
    ProgressReport,
    ReadyToLoad,
    Reset,
    Save,
    Saved,
    Status,
    Stop,
    parse_report,
)
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.totals import Progress
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.single_process.program import carry_types
from runnel.runtime.usage import UsageReport
from runnel.runtime.workers.usage_meter import UsageMeter, Watched
from runnel.system import startup
from runnel.system.stacks import Frame, place, read
from runnel.transport.memory import arrays_bytes
from runnel.types import PyTree

STOP_S = 5.0
"""How long workers may take to end when asked."""

START_S = 300.0
"""How long learners may take to start."""

PAUSE_S, HURRY_S = 120.0, 30.0
"""How long a pause may take to reach a worker: an iteration, and what it compiles; less where a user waits for it."""

SILENT = "no sign of life"

REST_S = 15.0
"""How long a worker may take to leave what it is at; who takes longer is replaced."""


class DistributedProgram:
    """All workers of a plan."""

    def __init__(
        self, built: BuiltRun, config: dict[str, Any], run_dir: Path, site: Site, machines: Sequence[Machine],
        tell: ReportEvent = ignore_event,
    ):  # fmt: skip
        self.built, self.run_config = built, run_config.from_json(config)
        self.run_dir, self.tell = run_dir, tell
        self.steps = 0  # in this process
        self.graph, self.plan = built.graph, built.plan
        self.host = not is_traceable(built.environment)
        self.free = staleness_in_iterations(self.plan, self.graph) > 0
        self.topology = derive_channels(self.plan, self.graph, self.host)
        self.learners = {n for f in self.plan.fragments if learns(f, self.graph) for n in f.workers()}
        self.carry: Carry | None = None  # of the newest checkpoint
        self.told = ProgressAggregator(self.learners)
        self.paused: set[str] = set()
        self.budget = RestartBudget(self.run_config.restarts)
        self.patience = HeartbeatMonitor(self.run_config.hang_after_s)
        self.standstill = DeadlockDetector(self.run_config.hang_after_s)
        self._hurried_at: float | None = None  # when somebody began to wait for the end
        self.status: dict[str, Status] = {}  # by worker: how it fared, as it told last
        self._phases: dict[str, str] = {}
        self._until_steps = 0
        self._started = self._loaded = False
        self._pausing: set[str] = set()  # who was asked to
        self._paused_at: dict[str, int | None] = {}  # by learner: the iteration
        self._pause_at = 0  # the iteration at which all learners are to pause
        self._saved: dict[str, dict[str, np.ndarray]] = {}
        self._asked_to_save: set[str] = set()
        self._resting: set[str] = set()
        self._replaced: dict[str, tuple[float, Fault]] = {}  # by worker: when and why, until it is at work
        self.crew = WorkerGroup(built, self.topology, config, run_dir, site, machines, self.free)
        self._oom_kills = self.crew.oom_kills()
        self.tally = self._tally()
        try:
            self.crew.start()
        except BaseException:
            self.close()
            raise

    # A program

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> Progress:
        """Lets the workers go on for at most so many iterations; comes back after about so many seconds."""
        if not self._loaded:
            self.load(None)
        until = self.told.env_steps + iterations * self.graph.steps_per_iteration
        go = Go(until, None if math.isinf(target) else target)
        if self.paused or not self._started:
            self._until(lambda: self.learners <= self.paused or stop(), START_S, "start")
            self._pausing.clear()
            for name in self.crew.processes:
                self._send(name, go)
            self.paused.clear()
            self._started = True
            self.tally.skip()
        elif until != self._until_steps:
            for name in self.learners:
                self._send(name, go)
        self._until_steps = until
        deadline = time.monotonic() + seconds
        while True:
            self._listen(0.05)
            self._look_for_standstill()
            self.tally.sample()
            over = self.learners <= self.paused
            moved = self.told.env_steps < self.told.reached_env_steps()
            if over or stop() or (time.monotonic() > deadline and moved):
                break
        return self.told.progress(target)

    def rest(self) -> Progress:
        """What workers told while they paused."""
        return self.told.progress()

    def measure(self) -> None:
        self.tally.begin()

    def hurry(self) -> None:
        """Somebody waits for the end."""
        self._hurried_at = self._hurried_at or time.monotonic()

    def report(self, recent: bool = False) -> UsageReport:
        report = self.tally.report(recent)
        # Of those who do not learn but compute gradients, the worker's own count of updates is nobody's.
        hosts = {name: "" if host == HERE else host for name, host in self.crew.hosts.items()}
        workers = (
            replace(w, updates=w.updates if w.name in self.learners else None, host=hosts[w.name])
            for w in report.workers
        )
        return replace(report, workers=tuple(workers))

    def _tally(self) -> UsageMeter:
        roles = {post.name: post.fragment for post in self.topology.posts}
        streams = [
            Watched(roles[link.source], roles[link.target], link.kind, fill, arrays_bytes(link.schema))
            for link, fill in self.crew.streams()
        ]
        return UsageMeter(roles, streams)

    # Checkpoints

    def save(self) -> dict[str, PyTree]:
        """Pauses everybody between two iterations, and puts their parts together."""
        self._pause_at = 0
        for stage in self._stages():
            self._pausing |= stage
            for name in stage - self.paused:
                self._send(name, Pause())
            self._until(self._all_paused, max(PAUSE_S, 1.5 * self.standstill.most_s), "pause")
        self._saved, self._asked_to_save = {}, set()
        self._until(self._all_saved, PAUSE_S, "save")
        arrays: worker_checkpoint.Arrays = {names.SEED: np.asarray(self.run_config.seed, np.uint32)}
        for name in sorted(self._saved, key=lambda name: name in self.learners):  # what learners say counts
            arrays |= self._saved[name]
        saved = worker_checkpoint.join(
            arrays, carry_types(self.graph, self.built.environment), self.topology, self.host
        )
        self.carry = saved["carry"]
        return saved

    def _all_paused(self) -> bool:
        self._align()
        return self._pausing <= self.paused

    def _align(self) -> None:
        """Has learners that are in step with each other pause at the same iteration.

        One may have paused while another had begun the next iteration, which it cannot finish without the first. Nobody
        can be further than that: so all go on to the end of it, once.
        """
        late = (self.learners & self._pausing) - self.paused
        early = [at for name in self.learners & self.paused if (at := self._paused_at[name]) is not None]
        if self.free or self._pause_at or not early or not late or not all(map(self.standstill.waits, late)):
            return
        self._pause_at = max(early) + 1
        self.paused -= self.learners
        for name in self.learners:
            self._send(name, Pause(self._pause_at))

    def _all_saved(self) -> bool:
        for name in self.paused - self._asked_to_save:
            self._asked_to_save.add(name)
            self._send(name, Save())
        return len(self._saved) == len(self.crew.posts)

    def _stages(self) -> list[set[str]]:
        """Who pauses after whom: between two iterations nothing is on its way.

        Synchronous workers wait for their learner, so it pauses first. Asynchronous ones do not: there it is first
        who makes unrolls, then who makes something of them, in the order in which it flows, for who pauses before
        another makes no room for it; and last who learns. But several learners pause where they agree to, and throw
        away what comes meanwhile; and who acts in step with environments elsewhere, and puts their trajectories
        together, pauses before they do, or it would wait for the rest of an unroll.
        """
        everybody, learners = set(self.crew.posts), self.learners
        players = set(self.plan.home("environment").workers())
        servers = {n for node in self.graph.of_kind("act") for n in self.plan.home(node.name).workers()} - players
        nodes = list(self.graph.nodes)  # as data flows
        flows = sorted(self.plan.fragments, key=lambda fragment: min(map(nodes.index, fragment.nodes)))
        makers = [set(fragment.workers()) - players - servers - learners for fragment in flows]
        others = [players - learners, servers - learners, *makers]
        if not self.free:
            return [learners, everybody - learners]
        rolls = {n for node in self.graph.of_kind("rollout") for n in self.plan.home(node.name).workers()} - players
        order = [learners, *others] if len(learners) > 1 else [*others, learners]
        return [rolls, *(stage - rolls for stage in order)]

    def load(self, saved: dict[str, PyTree] | None, env_steps: int = 0) -> int:
        """Gives the workers what to begin from, or nothing to begin at the beginning; what they were at is forgotten.

        Says how many episodes could not be replayed and were cut.
        """
        if self._loaded:
            self._to_rest()
        self._loaded = True
        arrays: worker_checkpoint.Arrays = {}
        cut = 0
        self.told.begin()
        if saved is not None:
            self.carry = saved["carry"]
            agents = {group: spec.agents for group, spec in self.graph.spec.groups.items()}
            arrays = worker_checkpoint.split(saved, self.topology, agents)
            cut = int(np.sum(saved["host"]["cut"])) if saved["host"] else 0
            arrays[names.ENV_STEPS] = np.asarray(env_steps)
            versions = sum(int(count) for name, count in arrays.items() if names.counts_updates(name))
            self.told.begin(env_steps, int(arrays[names.ITERATION]), versions)
        for post in self.topology.posts:
            self._give(post, self._part(post, arrays), rejoins=False)
        return cut

    def _give(self, post: WorkerSpec, arrays: worker_checkpoint.Arrays, rejoins: bool, suspect: bool = False) -> None:
        command = Load(rejoins, suspect).to_json()
        with contextlib.suppress(BrokenPipeError, TimeoutError):  # its end is noticed by `_listen`
            patiently(lambda: self.crew.processes[post.name].control.send_arrays(command, arrays))

    def _part(self, post: WorkerSpec, arrays: worker_checkpoint.Arrays) -> worker_checkpoint.Arrays:
        """What one worker needs of a checkpoint."""
        fragment = self.plan.fragment(post.fragment)
        kinds = {self.graph.nodes[node].kind for node in fragment.nodes}
        after = kinds - {"environment", "act", "rollout"}
        links, _ = self.topology.of(post.name)
        blocks = {b.number for b in self.topology.blocks if b.worker == post.name} | {link.block for link in links}

        def wanted(name: str) -> bool:
            block, node = names.block_number(name), names.replay_node(name)
            if block is not None:
                return block in blocks
            if node is not None:
                return node in fragment.nodes
            return bool(after) or name in (names.ITERATION, names.ENV_STEPS)

        return {name: np.asarray(array) for name, array in arrays.items() if wanted(name)}

    def close(self) -> None:
        """Stops every worker and leaves nothing behind."""
        processes = self.crew.processes
        for name, process in processes.items():
            if process.exit_status() is None:
                self._send(name, Stop())
        deadline = time.monotonic() + STOP_S
        for process in processes.values():
            process.wait(max(0.0, deadline - time.monotonic()))
        for name in processes:
            self._hear(name)
        self.crew.close(STOP_S)

    # What workers say

    def _send(self, name: str, command: Command) -> None:
        try:
            self.crew.processes[name].control.send(command.to_json())
            self.crew.ring(name)
        except (BrokenPipeError, TimeoutError, KeyError):
            pass  # its end is noticed by `_listen`

    def _until(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        began, shown = time.monotonic(), False
        while not done():
            self._listen(0.05)
            now = time.monotonic()
            if self._hurried_at is not None:
                began, seconds = max(began, self._hurried_at), min(seconds, HURRY_S)
                if now > began + SHOWN_S and not shown:
                    shown = True
                    end = f"ends without a checkpoint after {seconds:.0f} s; once more ends at once"
                    self.tell("interrupted", reason=f"waits for {self._late()}", action=end)
            elif "compiling" in self._phases.values():
                began = now  # that takes as long as it takes
            if now > began + seconds:
                late = self._late()
                raise WorkerFailed(f"no {what} within {seconds:.0f} s: waited for {late}; see {self.run_dir}/logs")

    def _late(self) -> str:
        """Who is waited for, and where each stands: who hangs, or else who was asked and does not wait for another."""
        asked = sorted((self._pausing or set(self.crew.posts)) - self.paused)
        silent = [n for n in self.crew.processes if n not in self.paused and self.patience.since(n) > HELD_S]
        late = stuck({name: self._stack(name) for name in silent})
        if not late:
            names = [name for name in asked if not self.standstill.waits(name)] or asked
            late = {name: self._stack(name) for name in names}
        return "; ".join(f"{name}, in {place(stack)}" if stack else self._silent(name) for name, stack in late.items())

    def _silent(self, name: str) -> str:
        process = self.crew.processes.get(name)
        return f"{name}, which is stopped" if process is not None and process.stopped() else name

    def _stack(self, name: str) -> list[Frame]:
        """Where a worker stands; nothing of one that is stopped, which asking would wake."""
        process = self.crew.processes.get(name)
        return [] if process is None or process.stopped() else read(process.stacks())

    def _listen(self, seconds: float) -> None:
        """Takes what workers say, and looks after those that say nothing more."""
        for name in self.crew.poll(seconds):
            failed = self._hear(name)
            status = self.crew.processes[name].exit_status()
            if status is not None:
                failed = failed or self._hear(name)
            if failed is not None:
                self._lost(raised(name, failed))
            elif status is not None:
                kills, self._oom_kills = self._oom_kills, self.crew.oom_kills()
                self._lost(ended(name, status, self.crew.processes[name].tail().strip(), kills != self._oom_kills))
        for name, process in list(self.crew.processes.items()):
            phase, beats = self._phases.get(name, "starting"), self.crew.beats(name)
            if beats is None:  # nothing is heard of its host, which is another matter
                self.patience.begin(name)
                continue
            silent = self.patience.silent(name, beats, phase, process.stopped)
            if silent is not None:
                self._hangs(name, silent)

    def _hangs(self, name: str, silent: float) -> None:
        """Gives up a worker that hangs; of learners that are one program, not one that waits for another in it."""
        processes = self.crew.processes
        silents = [mate for mate in self.crew.unit(name) - {name} if self.patience.since(mate) > silent / 2]
        together = [name, *(mate for mate in silents if mate in processes)]
        stopped = {mate: processes[mate].stopped() for mate in together}
        stacks = {mate: processes[mate].stacks() for mate in together}
        name = next((mate for mate in together if stopped[mate]), None) or to_blame(stacks)
        fault = hung(name, silent, self._phases.get(name, "starting"), stacks[name], stopped[name])
        self.tell("hang", worker=name, reason=fault.reason, stacks=stacks[name], show=False)  # `_lost` shows it
        self._lost(fault)

    def _hear(self, name: str) -> Failed | None:
        """Takes what a worker says; gives how it failed, where it did."""
        try:
            return self._hear_all(name)
        except (OutOfDescriptors, MalformedMessage) as error:  # what it said is lost
            return Failed(type(error).__name__, str(error), traceback="")

    def _hear_all(self, name: str) -> Failed | None:
        control = self.crew.processes[name].control
        while (message := control.receive()) is not None:
            match parse_report(message.value):
                case Status() as status:
                    self.status[name] = status
                    self.standstill.hear(name, status.waiting)
                    self._note_phase(name, status.phase)
                    self.tally.hear(name, status)
                case Phase(phase):
                    self._phases[name] = phase
                case ProgressReport() as progress:
                    self.told.hear(name, progress)
                case Paused(iteration):
                    self._note_pause(name, iteration)
                case Saved():
                    self._saved[name] = dict(message.arrays)
                case ReadyToLoad():
                    self._resting.add(name)
                case Event(event, details):
                    self.tell(event, worker=name, **details)
                case Failed() as failed:
                    return failed
        return None

    def _note_pause(self, name: str, iteration: int | None) -> None:
        self._paused_at[name] = iteration
        if iteration is None or iteration >= self._pause_at:  # else it was on its way when all were told to go on
            self.paused.add(name)

    def _note_phase(self, name: str, phase: str) -> None:
        self._phases[name] = phase
        startup.phase(not_at_work({worker: self._seems(worker) for worker in self.crew.processes}))
        if phase == "working" and name in self._replaced:
            since, fault = self._replaced.pop(name)
            self.tell("recovered", worker=name, action="at work again", after=fault.reason,
                      seconds=time.monotonic() - since)  # fmt: skip

    def _seems(self, name: str) -> str:
        """What a worker is at. Its first iteration counts as compiling, and is more: it may wait or hang in it."""
        phase = self._phases.get(name, "starting")
        if phase != "starting" and self.patience.since(name) > SHOWN_S:  # who compiles beats, and who waits
            return SILENT
        return "waiting" if phase == "compiling" and self.standstill.waits(name) else phase

    # When one is lost

    def _lost(self, fault: Fault) -> None:
        """Replaces a worker alone, or says that the state of the run is lost with it."""
        fault = self._cause(fault)
        name = fault.worker
        post = self.crew.posts[name]
        alone = replaceable(self.plan.fragment(post.fragment), self.graph, self.free)
        # Before it was at work it had no journal, and nobody has missed it.
        ready = self._phases.get(name, "starting") != "starting"
        self.crew.bury(name)
        try:
            self.budget.spend(fault, self.told.worked)
        except Exception:
            self.tell("budget", worker=name, reason=fault.reason, action="the run ends", detail=fault.detail)
            raise
        if fault.lost or not (alone and ready):
            self.tell("restart", worker=name, reason=fault.reason, action="all go back to a checkpoint",
                      detail=fault.detail)  # fmt: skip
            self._forget(name)
            raise StateLost(f"{name} {fault.reason}")
        self.tell("restart", worker=name, reason=fault.reason, action="replaced", detail=fault.detail)
        self._forget(name)
        self._replaced[name] = (time.monotonic(), fault)
        patiently(lambda: self.crew.start([name]))
        self._give(post, {}, rejoins=True, suspect=fault.crashed)
        if name in self._pausing:
            self._send(name, Pause())

    def _look_for_standstill(self) -> None:
        fault = self.standstill.fault(self.crew.posts)
        if fault is None:
            return
        stacks = "\n".join(f"{name}:\n{process.stacks()}" for name, process in self.crew.processes.items())
        self.tell("hang", worker=fault.worker, reason=fault.reason, stacks=stacks, show=False)
        self.budget.spend(fault._replace(detail=stacks), self.told.worked)
        self.tell("restart", worker=fault.worker, reason=fault.reason, action="all go back to a checkpoint")
        raise StateLost(f"{fault.worker} {fault.reason}")

    def _cause(self, fault: Fault) -> Fault:
        """Of learners that are one program, the one that was killed, not the one that missed it first."""
        for mate in self.crew.unit(fault.worker) - {fault.worker}:
            process = self.crew.processes.get(mate)
            status = process.wait(0.2) if process is not None and fault.error is None else None
            if process is not None and status is not None and status < 0:
                return ended(mate, status, process.tail().strip())
        return fault

    def _forget(self, name: str) -> None:
        """What a process said that is no more."""
        self.paused.discard(name)
        self._resting.discard(name)
        self._saved.pop(name, None)
        self._asked_to_save.discard(name)
        self._phases.pop(name, None)
        self._replaced.pop(name, None)
        self.patience.begin(name)
        self.standstill.hear(name, None)

    def _to_rest(self) -> None:
        """Has everybody leave what they are at; replaces whoever is gone, does not listen, or has lost its peers."""
        since = time.monotonic()
        gone = {mate for name in self.crew.posts if name not in self.crew.processes for mate in self.crew.unit(name)}
        if len(self.learners) > 1:
            gone |= {mate for name in self.learners for mate in self.crew.unit(name) if len(self.crew.unit(name)) > 1}
        self._resting.clear()
        for name in set(self.crew.processes) - gone:
            self._send(name, Reset())
        deadline = time.monotonic() + REST_S
        while not set(self.crew.posts) <= gone | self._resting and time.monotonic() < deadline:
            for name in self.crew.poll(0.05):
                failed = self._hear(name)
                if failed is not None or self.crew.processes[name].exit_status() is not None:
                    gone.add(name)
        gone |= set(self.crew.posts) - self._resting
        for name in gone:
            self.crew.bury(name)
            self._forget(name)
        self.crew.clear()
        self.paused.clear()
        self._pausing.clear()
        self._started = False
        patiently(lambda: self.crew.start(sorted(gone, key=list(self.crew.posts).index)))
        for name in self.crew.posts:
            self._phases[name] = "starting"
            fault = Fault(name, "went back to a checkpoint", "", crashed=False)
            self._replaced[name] = (since, fault)


def not_at_work(phases: Mapping[str, str]) -> str:
    """Which workers are still starting or compiling: `starting: actor-0, actor-1; compiling: learner`."""
    shown = ("starting", "compiling", SILENT)
    by_phase = {phase: [worker for worker in phases if phases[worker] == phase] for phase in shown}
    late = [f"{phase}: {', '.join(workers)}" for phase, workers in by_phase.items() if workers]
    return "; ".join(late) or "waiting for the first update"
