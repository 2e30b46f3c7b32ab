"""Stepping host environments: blocks of them step in alternation, one while others await actions. NumPy only.

A block is a range of environments of one worker that step together. Each group of agents goes through a block in
a *lane* (`runnel.runtime.workers.lanes`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from runnel.environment import Episode, HostStep, HostVector, ended_episodes, lives_of
from runnel.errors import EnvironmentFailed
from runnel.recording.events import ReportEvent, ignore_event
from runnel.runtime.programs import episode_sums
from runnel.runtime.programs.episode_counter import EpisodeCounter
from runnel.runtime.programs.episode_sums import EpisodeSums
from runnel.runtime.programs.versions import NO_STAMP, ParameterStamp
from runnel.runtime.recovery.action_history import ActionHistory, PrivateBuffers, RowSpec
from runnel.runtime.recovery.journal import Journal
from runnel.runtime.workers.lanes import Flags, Lane, LocalPolicyLane, RemoteRolloutLane, Unrolled
from runnel.transport.stream import dtype_of
from runnel.types import PyTree


class Acting(Protocol):
    """Actions computed in this process, for all groups that have their policy here."""

    stamp: ParameterStamp  # of the parameters taken last

    def begin(self, unroll: int) -> None:
        """An unroll begins: takes the parameters for it."""
        ...

    def memory(self) -> dict[str, list[Any]]:
        """By group: the leaves of the memory before the next step."""
        ...

    def adopt(self, observation: dict[str, PyTree]) -> dict[str, PyTree]:
        """The form in which `act` takes the observations that these arrays will hold; made once for each."""
        ...

    def act(self, t: int, observation: dict[str, PyTree], first: np.ndarray) -> Sequence[Any]:
        """The leaves of all actions, then of all extras, for the observations of step `t`."""
        ...


class Prepared(NamedTuple):
    """Views by step, made once: making them costs more than a step of a small environment."""

    seen: list[dict[str, PyTree]]  # by group: what those see that act here
    acted: list[list[np.ndarray]]  # where their actions and extras go
    first: list[np.ndarray]  # T + 1 of them
    actions: list[dict[str, np.ndarray]]  # by group
    outs: list[HostStep]  # empty where others act too


class BlockState:
    """Environments that step together."""

    def __init__(
        self, vector: HostVector, envs: range, steps: int, lanes: dict[str, Lane], acting: Acting | None,
        discounts: dict[str, float | None],
    ):  # fmt: skip
        self.vector, self.envs, self.steps, self.lanes, self.acting = vector, envs, steps, lanes, acting
        self.discounts = discounts
        agents = {group: lane.types.agents.agents for group, lane in lanes.items()}
        self.kept = {group: lane for group, lane in lanes.items() if isinstance(lane, LocalPolicyLane)}
        self.served = {group: lane for group, lane in lanes.items() if isinstance(lane, RemoteRolloutLane)}
        self.replays = not vector.stateful  # else it is kept as it is, without its actions
        self.history = ActionHistory(len(envs), PrivateBuffers(self.rows(), steps))
        real = next(iter(lanes.values())).types.real
        self.counter = EpisodeCounter(len(envs), {group: agents[group] for group in self.kept}, real)
        self.unrolls, self.begun = 0, False
        self.at = 0  # the step at which the unroll in progress goes on: of a replacement that is not 0
        self.terminated = np.zeros((steps, len(envs)), np.bool_)
        self.truncated = np.zeros((steps, len(envs)), np.bool_)
        self.first = np.ones((steps + 1, len(envs)), np.bool_)
        self._lives = lives_of(vector)
        # Where environments go on after an episode's end, the ends that they do not go on after.
        self._games_ended = np.zeros((steps, len(envs)), np.bool_) if self._lives is not None else self.first[1:]
        self.journal: Journal | None = None
        self.cut = 0  # episodes that could not be replayed
        self.entry: Callable[[], dict[str, np.ndarray]] = dict  # what the journal keeps of it between two unrolls
        self._local = [lane for lane in lanes.values() if not lane.asks]
        self._views: dict[tuple[int, ...], Prepared] = {}
        self._now = Prepared([], [], [], [], [])

    def rows(self) -> dict[str, RowSpec]:
        """By group: the shape and dtype that its history keeps of a step."""
        found: dict[str, RowSpec] = {}
        for group, lane in self.lanes.items() if self.replays else ():
            agents, action = lane.types.agents.agents, lane.types.action
            each = (len(self.envs),) if agents == 1 else (len(self.envs), agents)
            found[group] = ((*each, *action.shape), dtype_of(action))
        return found

    def keep_in(self, journal: Journal, entry: Callable[[], dict[str, np.ndarray]]) -> None:
        """Keeps what a replacement would need in a journal from now on. Called before `reset`, `restore` or `stand`."""
        self.journal, self.entry = journal, entry
        self.history = ActionHistory(len(self.envs), journal, journal.buffer_number())
        for lane in self.served.values():
            lane.keep_in(journal)

    def show(self) -> None:
        """Begins episode 0 of every environment, without sending anything."""
        self.vector.reset(self._opening())

    def reset(self) -> None:
        """Starts at the beginning of the run."""
        self.show()
        self._opened()

    def restore(self, episodes: Sequence[Episode], cut: np.ndarray, unrolls: int) -> np.ndarray:
        """Starts after `unrolls` unrolls with these episodes in progress. Returns [E] which had to begin again."""
        self.unrolls = unrolls
        failed = self.vector.restore(episodes, self._opening())
        self.cut += int(np.sum(failed & ~cut))
        cut = cut | failed
        numbers = self.vector.episode_numbers()
        stands = [e if not c else Episode(int(n), {g: a[:0] for g, a in e.actions.items()})
                  for e, c, n in zip(episodes, cut, numbers, strict=True)]  # fmt: skip
        self.history.restore(stands, unrolls * self.steps)
        self.first[-1] = self.history.began == self.history.end
        if self._lives is not None:
            self.first[-1] |= self._lives.first
        self.counter.forget(cut)
        self._opened()
        return cut

    def stand(self, unrolls: int, first: np.ndarray, show: Callable[[dict[str, PyTree]], None]) -> None:
        """Starts after `unrolls` unrolls, in environments that keep their own state: `show` writes observations."""
        self.unrolls = unrolls
        self.history.restore([Episode(0, {}) for _ in self.envs], unrolls * self.steps)
        self.first[-1] = first
        show(self._opening())
        self._opened()

    def redo(self) -> None:
        """Takes the steps again whose results were sent before this worker took over; they are not sent again."""
        last_sent = min((lane.last_request for lane in self.served.values()), default=-1)
        done = last_sent - self.unrolls * self.steps
        if done <= 0 or not self.served:
            return
        self.begin(NO_STAMP)
        for t in range(done):
            actions = {group: lane.actions[t] for group, lane in self.served.items()}
            out = self._out(t)
            self._step(t, actions, out, self.first[t + 1])
        self.at = done

    def _opening(self) -> dict[str, PyTree]:
        return {group: lane.results(-1).observation for group, lane in self.lanes.items()}

    def _opened(self) -> None:
        ended_episodes(self.vector)  # of what it did before
        flags = Flags(self.first[-1], np.zeros_like(self.first[-1]), np.zeros_like(self.first[-1]))
        for lane in self.lanes.values():
            lane.observed(self.steps, self.unrolls * self.steps, flags)

    def ready(self) -> bool:
        return all(lane.ready(self.unrolls) for lane in self.lanes.values())

    def begin(self, stamp: ParameterStamp) -> None:
        """An unroll begins, with the parameters of a stamp or newer ones."""
        self.begun = True
        self.first[0] = self.first[-1]
        # Before parameters are read: meanwhile a consumer of the unroll must not expect newer ones.
        for lane in self.lanes.values():
            lane.begin(self.unrolls, stamp)
        if self.acting is not None:
            self.acting.begin(self.unrolls)
            for lane in self.kept.values():
                lane.acted_by(self.acting.stamp)
            for group, memory in self.acting.memory().items():
                self.kept[group].remember(memory)
        self._now = self._prepared()
        flags = Flags(self.first[0], self.first[0], self.first[0])
        for lane in self.kept.values():
            if lane.asks:
                lane.observed(0, self.unrolls * self.steps, flags)

    def act(self, t: int) -> dict[str, np.ndarray]:
        """The actions of step `t`, by group."""
        now = self._now
        if self.acting is not None:
            for row, value in zip(now.acted[t], self.acting.act(t, now.seen[t], now.first[t]), strict=True):
                row[...] = value
            if now.outs:
                return now.actions[t]
        step = self.unrolls * self.steps + t
        return {group: lane.action(t, step) for group, lane in self.lanes.items()}

    def step(self, t: int, actions: dict[str, np.ndarray]) -> None:
        """Steps the environments and notifies every lane."""
        now = self._now
        out = now.outs[t] if now.outs else self._out(t)
        self._step(t, actions, out, now.first[t + 1])
        if not now.outs:
            self._notify(t, out)

    def _step(self, t: int, actions: dict[str, np.ndarray], out: HostStep, first: np.ndarray) -> None:
        self.vector.step(actions, out)
        np.logical_or(out.terminated, out.truncated, first)
        if self._lives is not None:
            self._games_ended[t] = self._lives.began

    def _out(self, t: int) -> HostStep:
        """The arrays into which step `t` writes."""
        results = {group: lane.results(t) for group, lane in self.lanes.items()}
        return HostStep(
            observation={group: result.observation for group, result in results.items()},
            reward={group: result.reward for group, result in results.items()},
            terminated=self.terminated[t],
            truncated=self.truncated[t],
            last_observation={group: result.last_observation for group, result in results.items()},
        )

    def _notify(self, t: int, out: HostStep) -> None:
        """Hands the results of a step to the lanes whose actions are computed elsewhere."""
        flags = Flags(self.first[t + 1], out.terminated, out.truncated)
        step = self.unrolls * self.steps + t + 1
        for lane in self.lanes.values():
            lane.observed(t + 1, step, flags)

    def _prepared(self) -> Prepared:
        """The views that the steps of an unroll read and write in the slots just taken; made once for each."""
        slots = tuple(id(lane.slot) for lane in self.kept.values())
        if slots not in self._views:
            local = [self.kept[lane.group] for lane in self._local]
            steps = range(self.steps)
            seen = [{lane.group: lane.seen(t) for lane in local} for t in steps]
            self._views[slots] = Prepared(
                seen=[self.acting.adopt(each) for each in seen] if self.acting is not None else seen,
                acted=[
                    [*(lane.slot.action[t] for lane in local), *(row for lane in local for row in lane.slot.extras[t])]
                    for t in steps
                ],
                first=list(self.first),
                # Where all act here, nothing about a step depends on others.
                actions=[{lane.group: lane.slot.action[t] for lane in local} for t in steps],
                outs=[self._out(t) for t in steps] if len(local) == len(self.lanes) else [],
            )
        return self._views[slots]

    def finish(self) -> None:
        """The unroll is complete: counts it, keeps its actions, and hands it over."""
        actions = {g: lane.slot.named["action"][0] for g, lane in self.kept.items()}
        actions |= {g: lane.actions for g, lane in self.served.items()}
        kept = {g: self._by_environment(action, g) for g, action in actions.items()} if self.replays else {}
        self.history.add(kept, self._games_ended)
        unroll = count(self.kept, self.counter, self.discounts, self.terminated, self.truncated, self.first)
        self.unrolls += 1
        self.begun, self.at = False, 0
        if self.vector.watch is not None:
            self._trust()
        if self.journal is not None:
            # Before it is handed over: where both entries are there, the streams' headers say which to continue from.
            self.journal.write(self.entry())
        for lane in self.kept.values():
            lane.finish(unroll)

    def _trust(self) -> None:
        self.vector.watch = None
        if self.journal is not None:
            self.journal.trust()

    def _by_environment(self, action: np.ndarray, group: str) -> np.ndarray:
        agents = self.lanes[group].types.agents.agents
        return action if agents == 1 else action.reshape(len(action), len(self.envs), agents, *action.shape[2:])


def count(
    kept: dict[str, LocalPolicyLane], counter: EpisodeCounter, discounts: dict[str, float | None],
    terminated: np.ndarray, truncated: np.ndarray, first: np.ndarray,
) -> Unrolled:  # fmt: skip
    """Counts an unroll; `first` [T + 1, E] has a row for the step after it."""
    ended = first[1:]
    rewards = {group: lane.slot.named["reward"][0] for group, lane in kept.items()}
    before = {group: total.copy() for group, total in counter.discounted.items()}
    returns, lengths = counter.unroll(rewards, ended)
    for group, reward in rewards.items():
        counter.discount(group, reward, ended, discounts.get(group))
    return Unrolled(terminated, truncated, first[:-1], ended, before, returns, lengths)


class Player:
    """All blocks of one worker.

    `gate` waits until a block may begin an unroll, and returns the stamp of the oldest parameters that act in it.
    `early` returns one where a block may begin at once while others still step, else None.
    `started` is called once the state is no longer that between two unrolls: with the first action or, where others act
    on a request at once, with the first request.
    `compiled` is called once all blocks have acted: from then on, what takes long is no compiler.
    `beat` is called with the number of steps that a block has taken: its heartbeat.
    `report_event` reports environments that failed.
    """

    def __init__(
        self,
        blocks: Sequence[BlockState],
        gate: Callable[[BlockState], ParameterStamp],
        early: Callable[[BlockState], ParameterStamp | None] = lambda block: None,
        started: Callable[[], None] = lambda: None,
        asks_count: bool = False,
        compiled: Callable[[], None] = lambda: None,
        beat: Callable[[int], None] = lambda steps: None,
        report_event: ReportEvent = ignore_event,
    ):
        self.blocks, self.gate, self.early = list(blocks), gate, early
        self.started, self.asks_count, self.compiled = started, asks_count, compiled
        self.beat, self.report_event = beat, report_event
        self.environment_s, self.act_s = 0.0, 0.0
        self._ended: EpisodeSums = {}

    @property
    def between_unrolls(self) -> bool:
        return not any(block.begun for block in self.blocks)

    def unroll(self) -> None:
        """One unroll of every block, a step of each at a time: while one waits for its actions, others step."""
        collecting = gc.isenabled()
        gc.disable()  # steps make many small objects; what garbage there is among them can wait for the unroll's end
        try:
            self._unroll()
        except EnvironmentFailed:
            for block in self.blocks:
                self.report_failures(block)
            raise
        finally:
            if collecting:
                gc.enable()

    def _unroll(self) -> None:
        clock = time.perf_counter
        # All have made the same number of unrolls, unless this worker replaces one that was lost between two of them.
        behind = min(block.unrolls for block in self.blocks)
        blocks = [block for block in self.blocks if block.unrolls == behind]
        steps = blocks[0].steps
        for block in blocks:
            if not block.begun:
                stamp = self.gate(block)
                if self.asks_count:
                    self.started()
                block.begin(stamp)
        begin = min(block.at for block in blocks)
        for t in range(begin, steps):
            for block in blocks:
                if t < block.at:
                    continue
                started = clock()
                actions = block.act(t)
                acted = clock()
                if t == 0:
                    self.started()
                if t == begin and block is blocks[-1]:
                    self.compiled()
                block.step(t, actions)
                self.act_s += acted - started
                self.environment_s += clock() - acted
                self.beat(behind * steps + t + 1)
                if t + 1 == steps:
                    self._finish(block)
        for block in blocks:
            if block.unrolls == behind:  # it had no step left to take
                self._finish(block)

    def _finish(self, block: BlockState) -> None:
        block.finish()
        episode_sums.add_episodes(self._ended, ended_episodes(block.vector))  # now that they have been handed over
        self.report_failures(block)
        stamp = self.early(block)
        if stamp is not None:
            block.begin(stamp)

    def episode_sums(self) -> EpisodeSums:
        """Metrics of the episodes that ended in complete unrolls since this was last called."""
        ended, self._ended = self._ended, {}
        return ended

    def report_failures(self, block: BlockState) -> None:
        """Reports the failures of a block's environments since the last call."""
        failures = block.vector.failures()
        for what in dict.fromkeys(failure.what for failure in failures):
            like = [failure for failure in failures if failure.what == what]
            self.report_event(
                "environment", reason=f"environment {like[0].index}: {what}", times=len(like), episode=like[0].episode,
                action="its episode was cut, and a new environment was created", traceback=like[0].traceback,
            )  # fmt: skip
