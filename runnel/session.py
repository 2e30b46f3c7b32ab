"""One stretch of a run, from start or resume to its end: progress, checkpoints, signals and the result."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from runnel.bottleneck import Report, Role, Setting, bottleneck
from runnel.building import Built
from runnel.checkpoint import Checkpoints
from runnel.configure import keep_off_devices
from runnel.environment import is_traceable
from runnel.errors import UserError
from runnel.metrics import MetricsLog, write_json_atomically
from runnel.plan import Machine
from runnel.report import LiveView, summary
from runnel.runtime.program import Program, carry_types, make_program
from runnel.runtime.topology import staleness_in_iterations
from runnel.runtime.totals import Progress
from runnel.types import PyTree

REPORT_S = 0.1
"""How often a program comes back to report."""


@dataclass(frozen=True)
class Run:
    """A run that has ended."""

    result: dict[str, Any]  # as in result.json
    run_dir: Path
    states: dict[str, PyTree]  # by group: the learner's state

    @property
    def params(self) -> PyTree:
        """The parameters of the only group."""
        (state,) = self.states.values()
        return state.params


@dataclass
class Counters:
    """What a run has done since it began, resumed or not."""

    iterations: int = 0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    wall_seconds: float = 0.0
    cut_episodes: int = 0
    mean_return: float | None = None
    mean_length: float | None = None
    restarts: int = 0

    def add(self, progress: Progress, steps_per_iteration: int) -> None:
        self.iterations += progress.iterations
        steps = progress.iterations * steps_per_iteration if progress.env_steps is None else progress.env_steps
        self.env_steps += steps
        self.updates += progress.updates
        self.episodes += progress.episodes
        self.mean_return, self.mean_length = progress.mean_return, progress.mean_length


class Session:
    """Runs a plan until it has taken its steps, reached its return, or been asked to stop."""

    def __init__(
        self,
        run_dir: Path,
        config: dict[str, Any],
        built: Built,
        *,
        began: float,
        quiet: bool,
        resumed: bool = False,
        launcher: Any = None,
    ):
        self.launcher = launcher
        self.run_dir, self.config, self.built, self.quiet = run_dir, config, built, quiet
        self.began, self.resumed = began, resumed
        self.machine = Machine.here()  # before this process is kept off its devices
        self.checkpoints = Checkpoints(run_dir)
        self.counters = Counters()
        self.rate = _Rate()
        self.startup_s: float | None = None
        self.interrupted = False
        self.rest: Progress | None = None  # what workers told while they paused for the last checkpoint
        self.staleness = (0.0, 0)
        self._saved_at_iteration = -1

    def run(self) -> Run:
        config, graph = self.config, self.built.graph
        program = self._program()
        title = f"{type(self.built.algorithm).__name__} on {graph.spec.name}, {self.built.plan.distribution}"
        with contextlib.ExitStack() as stack:
            stack.callback(program.close)
            view = stack.enter_context(LiveView(config["steps"], self.quiet, title))
            for note in self.built.plan.notes:
                view.note(note)
            if self.resumed:
                self._load(program, view)
            write_json_atomically(self.run_dir / "config.json", config)
            (self.run_dir / "result.json").unlink(missing_ok=True)
            kept = self.counters.env_steps if self.resumed else None
            wandb = config if config.get("wandb") else None
            log = stack.enter_context(MetricsLog(self.run_dir, keep_until_env_steps=kept, wandb=wandb))
            stack.enter_context(self._signals())
            try:
                self._train(program, log, view)
            except BaseException:
                self._write_result("failed", program)
                raise
            result = self._write_result("interrupted" if self.interrupted else "finished", program)
        if not self.quiet:
            print(summary({**result, "run_dir": str(self.run_dir)}), flush=True)
        return Run(result, self.run_dir, program.carry.states if program.carry is not None else {})

    def _program(self) -> Program:
        plan, graph = self.built.plan, self.built.graph
        if plan.workers == 1:
            return make_program(plan, graph, self.built.environment, self.config["seed"])
        from runnel.fleet import Fleet
        from runnel.launch import LocalLauncher

        keep_off_devices(self.machine)
        return Fleet(self.built, self.config, self.run_dir, self.launcher or LocalLauncher(), self.machine)

    def _train(self, program: Program, log: MetricsLog, view: LiveView) -> None:
        wanted, per_iteration = self.config["steps"], self.built.graph.steps_per_iteration
        target = self.config["stop_at_return"]
        target = math.inf if target is None else target
        saved_at = time.monotonic()
        reached = self.counters.mean_return is not None and self.resumed and self.counters.mean_return >= target
        while self.counters.env_steps < wanted and not self.interrupted and not reached:
            # Until the first update there is compiling to do; what follows is what the rate is of.
            left = math.ceil((wanted - self.counters.env_steps) / per_iteration)
            seconds, left = (REPORT_S, left) if self.startup_s is not None else (0.0, 1)
            progress = program.run(left, seconds, target, lambda: self.interrupted)
            self.counters.add(progress, self.built.graph.steps_per_iteration)
            reached = progress.reached
            if self.startup_s is None and progress.updates:
                self.startup_s = time.monotonic() - self.began
                self.rate.start(self.counters.env_steps)
                program.measure()
            self.staleness = progress.staleness
            lately = program.report(recent=True)
            record = self._record(progress, lately)
            log.write(record)
            view.update(record, lately)
            if time.monotonic() - saved_at > self.config["checkpoint_every_s"]:
                self._save(program, view)
                saved_at = time.monotonic()
        self.rate.stop(self.counters.env_steps)
        self._save(program, view)
        if self.rest is not None:  # workers have told more since: the last line says how the run ended
            log.write(self._record(self.rest, program.report(recent=True)))

    def _record(self, progress: Progress, lately: Report) -> dict[str, Any]:
        counters = self.counters
        record: dict[str, Any] = {
            "env_steps": counters.env_steps,
            "iterations": counters.iterations,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "mean_return": counters.mean_return,
            "mean_length": counters.mean_length,
            "steps_per_second": self.rate.now(counters.env_steps),
            "wall_seconds": self._wall_seconds(),
            "staleness_mean": progress.staleness[0],
            "staleness_max": progress.staleness[1],
            **lately.metrics(),
            **{f"learn/{name}": value for name, value in progress.out.items()},
        }
        if len(progress.group_returns) > 1:
            record |= {f"return/{group}": value for group, value in progress.group_returns.items()}
        return record

    def _wall_seconds(self) -> float:
        return self.counters.wall_seconds + time.monotonic() - self.began

    def _save(self, program: Program, view: LiveView) -> None:
        if self.counters.iterations == self._saved_at_iteration or not self.counters.iterations:
            return
        saved, rest = program.save(), program.rest()
        self.rest = rest
        if rest is not None:
            self.counters.add(rest, self.built.graph.steps_per_iteration)
        counters = {**asdict(self.counters), "wall_seconds": self._wall_seconds()}
        path = self.checkpoints.save(self.counters.iterations, saved, counters)
        self._saved_at_iteration = self.counters.iterations
        view.note(f"checkpoint {path.name}")

    def _load(self, program: Program, view: LiveView) -> None:
        like = {"carry": carry_types(self.built.graph, self.built.environment)}
        saved, counters = self.checkpoints.load(like, view.note)
        if not saved["host"] and not is_traceable(self.built.environment):
            raise UserError(f"{self.run_dir} was trained on a JAX environment; it cannot go on with a host environment")
        self.counters = Counters(**counters)
        taken = self.counters.env_steps
        if taken - self.built.graph.steps_per_iteration >= self.config["steps"]:
            raise UserError(
                f"{self.run_dir} has taken {taken:,} steps already, and --steps {self.config['steps']:,} "
                "counts from its beginning; ask for more than it has"
            )
        cut = program.load(saved, taken)
        if cut:
            self.counters.cut_episodes += cut
            view.note(f"{cut} episodes could not be replayed; they are cut and the next ones begun")
        self._saved_at_iteration = self.counters.iterations
        view.note(f"resumed at {self.counters.env_steps:,} steps")

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal asks for a clean stop; the second is the impatient user's and does what it always does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in handled}

        def ask(number: int, frame: Any) -> None:
            del number, frame
            self.interrupted = True
            for n, handler in before.items():
                signal.signal(n, handler)

        for number in handled:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _write_result(self, status: str, program: Program) -> dict[str, Any]:
        counters, plan = self.counters, self.built.plan
        report = program.report()
        if plan.workers == 1:
            (worker,) = report.workers
            report = Report((replace(worker, env_steps=counters.env_steps, updates=counters.updates),))
        result = {
            "status": status,
            "algorithm": plan.algorithm.lower(),
            "environment": self.config["environment"]["name"],
            "distribution": plan.distribution,
            "seed": self.config["seed"],
            "env_steps": counters.env_steps,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "cut_episodes": counters.cut_episodes,
            "mean_return": counters.mean_return,
            "wall_seconds": self._wall_seconds(),
            "startup_seconds": self.startup_s,
            "steps_per_second": self.rate.overall(),
            "staleness_mean": self.staleness[0],
            "staleness_max": self.staleness[1],
            "restarts": counters.restarts,
            "workers": [worker.json() for worker in report.workers],
            "streams": [stream.json() for stream in report.streams],
            # Before the first update there was only starting.
            "bottleneck": bottleneck(report, setting_of(self.built, self.machine)) if self.startup_s else None,
        }
        write_json_atomically(self.run_dir / "result.json", result)
        return result


def setting_of(built: Built, machine: Machine) -> Setting:
    """What the run was given, as far as `bottleneck` may ask for more or less of it."""
    plan, graph = built.plan, built.graph
    known = ("actors", "inference", "learners", "ring")
    given: Any = built.distribution
    flags = {each.name: getattr(given, each.name) for each in fields(given) if each.name in known}
    if "ring" in flags:
        flags["ring"] = plan.home("environment").ring  # as far as the environments could be divided
    return Setting(
        flags=flags,
        roles=tuple(
            Role(fragment.name, fragment.replicas, frozenset(graph.nodes[node].kind for node in fragment.nodes))
            for fragment in plan.fragments
        ),
        envs=plan.envs,
        cpus=machine.cpus,
        gpus=sum(not device.startswith("cpu") for device in machine.devices),
        free=staleness_in_iterations(plan, graph) > 0,
        max_staleness=graph.algorithm.max_staleness,
        host=not is_traceable(built.environment),
    )


@dataclass
class _Rate:
    """Environment steps per second since the first update, and lately."""

    started: tuple[float, int] | None = None
    stopped: tuple[float, int] | None = None
    window: list[tuple[float, int]] = field(default_factory=list)

    def start(self, steps: int) -> None:
        self.started = (time.monotonic(), steps)
        self.window = [self.started]

    def now(self, steps: int) -> float | None:
        """Over the last five seconds or so."""
        if self.started is None:
            return None
        self.window.append((time.monotonic(), steps))
        while len(self.window) > 2 and self.window[-1][0] - self.window[1][0] > 5:
            self.window.pop(0)
        return _slope(self.window[0], self.window[-1])

    def stop(self, steps: int) -> None:
        """What follows, such as the last checkpoint, is not training."""
        self.stopped = (time.monotonic(), steps)

    def overall(self) -> float | None:
        return _slope(self.started, self.stopped) if self.started and self.stopped else None


def _slope(start: tuple[float, int], end: tuple[float, int]) -> float | None:
    return (end[1] - start[1]) / (end[0] - start[0]) if end[0] > start[0] and end[1] > start[1] else None
