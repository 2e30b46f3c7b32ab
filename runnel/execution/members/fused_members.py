"""Members that train in programs of this process: assigns them to shared programs, with a session for each."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import jax

from runnel.algorithm import Algorithm
from runnel.errors import UserError
from runnel.execution.building import BuiltRun, rebuild
from runnel.execution.members.backend import END_S, Standing, WaitingMember
from runnel.execution.members.member_memory import shortage, that_fit
from runnel.execution.members.member_run import member_session
from runnel.execution.session.session import Session, SharedParts
from runnel.execution.snapshots.evaluation_task import SharedEvaluations
from runnel.graph.flow import trace
from runnel.planning.machine import Machine
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.files import one_line
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.programs.traced_settings import Separation, TracedSettings, separate, values_of, with_settings
from runnel.runtime.single_process.cohort import CohortProgram, try_members
from runnel.runtime.single_process.shared_program import SharedProgram
from runnel.system import startup

MOST_BUILT: Final = 256
"""The number of built runs that are cached; there are more if settings change all the time."""


def is_fused(built: BuiltRun) -> bool:
    """Whether a whole run is one compiled program."""
    return built.plan.workers == 1 and built.plan.fragments[0].compiled


class _Running(NamedTuple):
    member: WaitingMember
    session: Session
    thread: threading.Thread


class SharedPrograms:
    """Compiled programs of members, reused by members trained later whose settings are equal except for traced ones."""

    def __init__(self, varying: Sequence[str] = (), population: int | None = None):
        """`varying`: settings that may come to differ between members; they are arguments of the programs where
        possible. `population`: the number of members that are compared and copied. Programs are compiled for all of
        them, however few train, and their states stay on the device between rounds."""
        self.varying, self.population = tuple(varying), population
        self.evaluations = SharedEvaluations()
        self._made: dict[str, CohortProgram] = {}
        self._built: dict[str, BuiltRun] = {}
        self._traced: list[TracedSettings] = []
        self._kept: tuple[CohortProgram, SharedProgram] | None = None
        self._fits: dict[tuple[CohortProgram, int], int] = {}
        self.said: set[str] = set()
        """Notes for the user that need no repetition."""

    def program(self, built: BuiltRun, config: Mapping[str, Any], traced: Sequence[str]) -> CohortProgram:
        """The program for members like this one. `config`: its configuration, which names all that it depends on."""
        settings = {name: v for name, v in config["algorithm"]["settings"].items() if name not in traced}
        others = [config.get(part) for part in ("environment", "distribution", "envs", "frozen")]
        key = json.dumps([config["algorithm"].get("class"), settings, sorted(traced), others], sort_keys=True)
        if key not in self._made:
            self._made[key] = cohort_program(built, traced)
        return self._made[key]

    def built(self, member: WaitingMember, trust: Collection[str], objects: Mapping[str, Any]) -> BuiltRun:
        """A member's run; cached if it was built before."""
        parts = ("algorithm", "environment", "distribution", "envs", "frozen")
        key = json.dumps([member.config.get(part) for part in parts], sort_keys=True)
        if key not in self._built:
            if len(self._built) >= MOST_BUILT:
                del self._built[next(iter(self._built))]
            self._built[key] = rebuild(member.directory, member.config, trusted=trust, **objects)
        return self._built[key]

    def separation(self, built: Sequence[BuiltRun]) -> Separation:
        """How members share programs. Found by tracing, once for all members that one program can train."""
        startup.phase("tracing")
        found = separate(
            [each.algorithm for each in built],
            lambda make, names: try_members(lambda values: _loop(built[0], make(values)), names),
            self.varying,
            self._traced,
        )
        seen = {id(each) for each in self._traced}
        self._traced += [program.settings for program in found.programs if id(program.settings) not in seen]
        return found

    def fitting(self, program: CohortProgram, members: int, parallel_calls: int, devices: Sequence[Any]) -> int:
        """The number of the `members` that fit into memory, 0 if not even one does. It is computed once, because
        running members fill memory."""
        key = (program, members)
        if key not in self._fits:
            self._fits[key] = that_fit(program, members, parallel_calls, devices)
        return self._fits[key]

    def keep(self, program: CohortProgram, shared: SharedProgram) -> None:
        """The whole population is in this program."""
        self._kept = (program, shared)

    def kept(self, program: CohortProgram) -> SharedProgram | None:
        """The population as its last round left it, if it is in this program; otherwise that program is closed."""
        found, self._kept = self._kept, None
        if found is None or found[0] is program:
            return None if found is None else found[1]
        found[1].close()
        return None

    def ended(self, shared: SharedProgram) -> None:
        """Frees a program in which no member trains any longer, unless the population continues in it."""
        if self._kept is None or self._kept[1] is not shared:
            shared.close()

    def copy(self, parents: Sequence[int]) -> None:
        """Copies states between members on the device, where they are still there."""
        if self._kept is not None:
            self._kept[1].copy(parents)


class DividedProgram(NamedTuple):
    """Members that one program may hold."""

    members: list[tuple[WaitingMember, BuiltRun]]
    traced: tuple[str, ...]  # settings that are arguments of the program
    size: int | None = None
    """The number of members that calls are for, however few train; None for those that do."""
    rest: bool = False
    """Whether others of the program have trained before, because memory does not hold all of them at once."""


class Divided(NamedTuple):
    """Members by the programs that may hold them."""

    programs: list[DividedProgram]
    notes: list[str]  # for the user


def divide(
    waiting: Sequence[WaitingMember], trust: Collection[str], objects: Mapping[str, Any], programs: SharedPrograms,
    ended: Sequence[WaitingMember] = (),
) -> Divided | None:  # fmt: skip
    """Divides members by the programs that they can share; None if their distribution is not a single program.

    `ended`: members of the same training that have nothing left to train. Programs have places for them.
    """
    everyone = sorted([*waiting, *ended], key=lambda member: member.number)
    built: list[BuiltRun] = []
    for member in everyone:
        built.append(programs.built(member, trust, objects))
        if not is_fused(built[-1]):
            return None
    if not all(_alike(member, everyone[0]) for member in everyone):
        raise UserError(
            f"{waiting[0].directory.parent}: found members of several environments or distributions, expected one"
        )
    separation, train = programs.separation(built), {member.number for member in waiting}
    divided = []
    for program in separation.programs:
        own = [(everyone[i], built[i]) for i in program.members if everyone[i].number in train]
        if own:
            divided.append(DividedProgram(own, program.traced, len(program.members)))
    notes = []
    if len(divided) > 1:
        reasons = "; ".join(f"{name}: {why}" for name, why in separation.fixed.items())
        notes.append(f"{len(divided)} programs, one after another, for settings that are fixed: {reasons}")
    if separation.traced:
        notes.append(f"settings of each member in one program: {', '.join(separation.traced)}")
    return Divided(divided, notes)


class FusedMembers:
    """Members that share programs, each with a session in its own thread."""

    def __init__(self, divided: Sequence[DividedProgram], programs: SharedPrograms):
        """`divided`: the members by program; they begin one program after another."""
        self._waiting, self._programs = list(divided), programs
        self._running: list[_Running] = []
        self._shared_by: SharedProgram | None = None  # those that run
        self._news: list[str] = []
        self._stopped: int | None = None
        self.notes: list[str] = []

    @classmethod
    def of(
        cls, waiting: Sequence[WaitingMember], trust: Collection[str], objects: Mapping[str, Any],
        programs: SharedPrograms, ended: Sequence[WaitingMember] = (),
    ) -> Self | None:  # fmt: skip
        """None if the members have another distribution. `ended`: members that have nothing left to train.

        A member's numbers depend on the size of the call that it is in. So this size stays the same after members have
        ended, unless members end individually by reaching a return: then calls shrink.
        """
        divided = divide(waiting, trust, objects, programs, ended)
        if divided is None:
            return None
        alone = any(m.asked.stop_at_return is not None or m.asked.stop_at_eval_return is not None for m in waiting)
        found = cls([each._replace(size=None) if alone else each for each in divided.programs], programs)
        found.notes += divided.notes
        return found

    def advance(self) -> None:
        ended = [running for running in self._running if not running.thread.is_alive()]
        self._running = [running for running in self._running if running.thread.is_alive()]
        del ended
        if not self._running and self._shared_by is not None:
            self._programs.ended(self._shared_by)
            self._shared_by = None
        if self._stopped is not None:
            self._waiting = []
        if not self._running and self._waiting:
            self._begin(self._waiting.pop(0))

    def wait(self, seconds: float) -> None:
        if self._running:
            self._running[0].thread.join(seconds)

    def over(self) -> bool:
        return not self._running and not self._waiting

    def standing(self) -> dict[int, Standing]:
        found = {}
        for running in self._running:
            stats = running.session.state.stats
            if not stats.counters.env_steps:  # it may not have read its checkpoint yet
                continue
            speed = stats.rate.now(stats.counters.env_steps) if stats.startup_s is not None else None
            found[running.member.number] = Standing(stats.counters.env_steps, stats.counters.mean_return, speed)
        return found

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news

    def stop(self, number: int) -> None:
        self._stopped = number
        for running in self._running:
            running.session.end.stop(number)

    def ask_for_checkpoint(self) -> None:
        for running in self._running:
            running.session.state.checkpoint_asked = True

    def abort(self) -> None:
        """Nothing is left to end: threads end with the process."""

    def close(self) -> None:
        deadline = time.monotonic() + END_S
        for running in self._running:
            running.thread.join(max(0.0, deadline - time.monotonic()))

    def _begin(self, divided: DividedProgram) -> None:
        """Compiles the program of as many members as there is memory for, and starts their sessions."""
        members, whole = divided.members, divided.size
        built = members[0][1]
        devices = devices_of(built)
        program = self._programs.program(built, members[0][0].config, divided.traced)
        startup.phase(f"compiling for {len(members)} members")
        parallel_calls = side_calls(program, devices)
        fit = self._programs.fitting(program, whole or len(members), parallel_calls, devices)
        if not fit:
            self._say(shortage(program, devices))
            fit = 1
        if fit < len(members):
            self._waiting.insert(0, divided._replace(members=members[fit:], rest=True))
            self._say(f"memory for {fit} members at a time, of {len(members)}")
            members = members[:fit]
        elif not divided.rest:
            self._say(f"memory for all {whole or len(members)} members at once")
        if self._stopped is not None:  # while it was compiled
            return
        now = divided._replace(members=members, size=None if whole is None else fit)
        shared = self._shared(program, now, parallel_calls)
        self._shared_by, began = shared, time.monotonic()
        for place, (member, own) in enumerate(members):
            if self._stopped is None:
                self._start(member, own, shared, place, began)
            else:
                shared.leave(place)  # calls must not wait for a member that does not begin

    def _say(self, note: str) -> None:
        if note not in self._programs.said:  # such as in an earlier round
            self._programs.said.add(note)
            self.notes.append(note)

    def _shared(self, program: CohortProgram, divided: DividedProgram, parallel_calls: int) -> SharedProgram:
        """The program of these members; those that are in it already continue from their states."""
        members, whole = divided.members, divided.size
        values = values_of([own.algorithm for _, own in members], divided.traced)
        kept = self._programs.kept(program)
        if kept is not None and not len(members) == whole == self._programs.population:
            kept.close()
            kept = None
        if kept is not None:
            fresh = [k for k, (member, _) in enumerate(members) if Checkpoints(member.directory).newest() is None]
            kept.begin(values, fresh)
        first, built = members[0]
        shared = kept or SharedProgram(
            program,
            built.graph.steps_per_iteration,
            [member.asked.seed for member, _ in members],
            values,
            SnapshotSchedule(first.asked.snapshot_periods),
            parallel_calls,
            whole=whole,
            skips=[member.asked.on_nan == "skip" for member, _ in members],
        )
        if len(members) == whole == self._programs.population:
            self._programs.keep(program, shared)
        return shared

    def _start(self, member: WaitingMember, built: BuiltRun, shared: SharedProgram, place: int, began: float) -> None:
        made, session = threading.Event(), []
        view = shared.views[place]
        parts = SharedParts(view, self._programs.evaluations.make, view.held)

        def body() -> None:
            try:
                with member_session(member.directory, member.asked, built, began, shared=parts) as own:
                    session.append(own)
                    made.set()
                    own.run()
            except BaseException as error:
                self._news.append(f"{member.directory.name} failed: {one_line(error)}")
            finally:
                shared.leave(place)
                made.set()

        thread = threading.Thread(target=body, name=member.directory.name, daemon=True)
        thread.start()
        made.wait()
        if session:
            self._running.append(_Running(member, session[0], thread))
            if self._stopped is not None:  # a signal was received before it existed
                session[0].end.stop(self._stopped)


def devices_of(built: BuiltRun) -> list[Any]:
    by_name = {f"{device.platform}:{device.id}": device for device in jax.devices()}
    return [by_name[name] for name in built.plan.fragments[0].devices[0]]


def cohort_program(built: BuiltRun, traced: Sequence[str]) -> CohortProgram:
    """The program of members like this one, with these settings as its arguments."""

    def make_loop(values: Mapping[str, Any]) -> Loop:
        return _loop(built, with_settings(built.algorithm, values)) if values else _loop(built, None)

    return CohortProgram(make_loop, devices_of(built), traced)


def _loop(built: BuiltRun, algorithm: Algorithm | None) -> Loop:
    """The loop of a run; that of another algorithm on the same environments, where one is given."""
    graph = built.graph
    if algorithm is not None:
        graph = trace(algorithm, graph.spec, graph.envs, graph.frozen)
    return Loop(graph, built.environment)  # type: ignore[arg-type]


def _alike(a: WaitingMember, b: WaitingMember) -> bool:
    parts = ("environment", "distribution", "envs", "frozen")
    same = all(a.config.get(part) == b.config.get(part) for part in parts)
    return same and a.asked.snapshot_periods == b.asked.snapshot_periods


def side_calls(program: CohortProgram, devices: Sequence[Any]) -> int:
    """Calls that run side by side: one of a small network does not fill the cores of a CPU, but many members a GPU.

    One with convolutions does fill them, and two of these wait for each other. Two calls over the same devices could
    each hold what the other waits for.
    """
    alone = devices[0].platform != "cpu" or len(devices) > 1 or program.one_each
    return 1 if alone else Machine.here().cpus
