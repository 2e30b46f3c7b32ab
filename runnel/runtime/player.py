"""Playing host environments: blocks of them step in turn, each while others wait for their actions. NumPy only.

A block is a range of environments of one worker that step together. Each group of agents goes through a block in
a *lane*, which knows where the group's actions come from and where what it sees goes to:

| lane | actions | trajectory |
|---|---|---|
| `Kept` | computed here | put together here |
| `Asked` | asked for elsewhere | put together here |
| `Served` | asked for elsewhere | put together where the actions come from |
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from runnel.environment import Episode, HostStep, HostVector
from runnel.runtime.counting import Counter
from runnel.runtime.history import History
from runnel.runtime.messages import (
    Fields,
    GroupTypes,
    as_observation,
    empty,
    leaves,
    parts,
    reply_fields,
    request_fields,
    unroll_fields,
)  # fmt: skip
from runnel.runtime.ports import In, Out
from runnel.transport.stream import dtype_of
from runnel.types import PyTree


class Results(NamedTuple):
    """Where a step of the environments writes what it gave to one group."""

    observation: PyTree
    reward: np.ndarray
    last_observation: PyTree


class Flags(NamedTuple):
    """How a block stands after a step."""

    first: np.ndarray  # [E]
    terminated: np.ndarray  # [E]
    truncated: np.ndarray  # [E]


class Acting(Protocol):
    """Actions computed in this process, for all groups that have their policy here."""

    version: int

    def begin(self, unroll: int) -> None:
        """An unroll begins: takes the parameters for it."""
        ...

    def memory(self) -> dict[str, list[Any]]:
        """By group: the leaves of the memory before the next step."""
        ...

    def act(self, t: int, observation: dict[str, PyTree], first: np.ndarray) -> Sequence[Any]:
        """The leaves of all actions, then of all extras, for the observations of step `t`."""
        ...


class Slot:
    """Memory of one unroll of one group, and the views of it that each step reads and writes."""

    def __init__(self, types: GroupTypes, fields: Fields, arrays: Sequence[np.ndarray], steps: int):
        named = parts(fields, arrays)
        space = types.agents.observation

        def rows(name: str, t: int) -> list[np.ndarray]:
            return [array[t] for array in named[name]]

        self.arrays = list(arrays)
        self.named = named
        # Views are made once: making them costs more than a step of a small environment.
        self.seen = [as_observation(space, rows("observation", t)) for t in range(steps)]
        self.action = [named["action"][0][t] for t in range(steps)]
        self.extras = [rows("extras", t) for t in range(steps)]
        self.results = [
            Results(
                self.seen[t + 1] if t + 1 < steps else None,
                named["reward"][0][t],
                as_observation(space, rows("last_observation", t)),
            )
            for t in range(steps)
        ]


class Kept:
    """A lane whose trajectory is put together here, into the slots of whoever takes it or into its own."""

    asks = False

    def __init__(self, types: GroupTypes, group: str, steps: int, envs: int, outs: Sequence[Out]):
        self.types, self.group, self.steps, self.envs = types, group, steps, envs
        self.fields = unroll_fields(types, steps, envs)
        self.outs = list(outs)  # one for each replica of each consumer
        memory = [out.slots for out in self.outs] if self.outs else [[empty(self.fields)]]
        self._slots = [[Slot(types, self.fields, arrays, steps) for arrays in slots] for slots in memory]
        columns = envs * types.agents.agents
        self.after = as_observation(  # what the next unroll starts from
            types.agents.observation, [np.zeros((columns, *f.shape), dtype_of(f)) for f in types.observation]
        )
        self.slot = self._slots[0][0]
        self._to: list[Out] = []
        self._version = 0

    def ready(self, unroll: int) -> bool:
        """Whether there is room for an unroll."""
        return all(out.free() for out in self._takers(unroll))

    def begin(self, unroll: int, version: int) -> None:
        """Takes a slot; the first observation is the last one of the unroll before."""
        self._to = self._takers(unroll)
        self._version = version
        if self._to:
            at = self.outs.index(self._to[0])
            claimed = self._to[0].claim(version)
            self.slot = self._slots[at][claimed]
        _copy(self.slot.seen[0], self.after)

    def remember(self, memory: Sequence[Any]) -> None:
        """The memory before the unroll's first step."""
        for row, value in zip(self.slot.named["memory"], memory, strict=True):
            row[...] = value

    def seen(self, t: int) -> PyTree:
        return self.slot.seen[t] if t < self.steps else self.after

    def action(self, t: int) -> np.ndarray:
        return self.slot.action[t]

    def results(self, t: int) -> Results:
        """Where step `t` writes."""
        if t < 0:
            return Results(self.after, _NOWHERE, None)
        results = self.slot.results[t]
        return results if t + 1 < self.steps else results._replace(observation=self.after)

    def observed(self, t: int, flags: Flags) -> None:
        """The observation of step `t` is in place."""

    def finish(self, unroll: Unrolled) -> None:
        """Completes the trajectory and hands it over."""
        slot, agents = self.slot, self.types.agents.agents
        # The last step's successor, where no episode ended and so nobody wrote it.
        going = np.repeat(~unroll.ended[-1], agents)
        for last, after in zip(leaves(slot.results[-1].last_observation), leaves(self.after), strict=True):
            last[going] = after[going]
        for name in ("terminated", "truncated", "first"):
            slot.named[name][0][...] = getattr(unroll, name)
        slot.named["discounted_sum"][0][...] = unroll.discounted[self.group]
        slot.named["episode_return"][0][...] = unroll.returns[self.group]
        slot.named["episode_length"][0][...] = unroll.lengths
        for out in self._to[1:]:
            claimed = out.claim(self._version)
            for to, value in zip(out.slots[claimed], slot.arrays, strict=True):
                to[...] = value
            out.commit()
        if self._to:
            self._to[0].commit()

    def _takers(self, unroll: int) -> list[Out]:
        """Who takes this unroll: consumers with several replicas take turns."""
        return [out for out in self.outs if out.takes(unroll)]


class Asked(Kept):
    """A lane whose actions come from a worker that serves them."""

    asks = True

    def __init__(
        self, types: GroupTypes, group: str, steps: int, envs: int, outs: Sequence[Out], request: Out, reply: In
    ):
        super().__init__(types, group, steps, envs, outs)
        self.request, self.reply = request, reply
        self._requests = [parts(request_fields(types, envs, False), arrays) for arrays in request.slots]
        self._reply_fields = reply_fields(types, envs, True)

    def observed(self, t: int, flags: Flags) -> None:
        if t == self.steps:
            return  # the next unroll asks, once there is room for it and its version is told
        named = self._requests[self.request.claim(self._version)]
        for to, value in zip(named["observation"], leaves(self.seen(t)), strict=True):
            to[...] = value
        named["first"][0][...] = flags.first
        self.request.commit(tag=t)

    def action(self, t: int) -> np.ndarray:
        message = self.reply.receive()
        named = parts(self._reply_fields, message.arrays)
        self.slot.action[t][...] = named["action"][0]
        for row, value in zip(self.slot.extras[t], named["extras"], strict=True):
            row[...] = value
        if t == 0:
            self.remember(named["memory"])
        self.reply.release(message)
        return self.slot.action[t]


class Served:
    """A lane whose trajectory is put together by the worker that acts: every step's results go there."""

    asks = True

    def __init__(self, types: GroupTypes, group: str, steps: int, envs: int, request: Out, reply: In):
        self.types, self.group, self.steps = types, group, steps
        self.request, self.reply = request, reply
        fields = request_fields(types, envs, True)
        self._named = [parts(fields, arrays) for arrays in request.slots]
        space = types.agents.observation
        self._results = [
            Results(
                as_observation(space, named["observation"]),
                named["reward"][0],
                as_observation(space, named["last_observation"]),
            )
            for named in self._named
        ]
        self._claimed = 0
        self._action = np.zeros((envs * types.agents.agents, *types.action.shape), dtype_of(types.action))

    def ready(self, unroll: int) -> bool:
        return True

    def begin(self, unroll: int, version: int) -> None:
        pass

    def results(self, t: int) -> Results:
        self._claimed = self.request.claim(0)
        return self._results[self._claimed]

    def observed(self, t: int, flags: Flags) -> None:
        named = self._named[self._claimed]
        for name, value in flags._asdict().items():
            named[name][0][...] = value
        self.request.commit(tag=t)

    def action(self, t: int) -> np.ndarray:
        message = self.reply.receive()
        self._action[...] = message.arrays[0]
        self.reply.release(message)
        return self._action


Lane = Kept | Asked | Served


class Unrolled(NamedTuple):
    """What all lanes of a block need to know of an unroll that is complete."""

    terminated: np.ndarray  # [T, E]
    truncated: np.ndarray  # [T, E]
    first: np.ndarray  # [T, E]
    ended: np.ndarray  # [T, E]
    discounted: dict[str, np.ndarray]  # by group: [B] before the unroll
    returns: dict[str, np.ndarray]  # by group: [T, E]
    lengths: np.ndarray  # [T, E]


class Prepared(NamedTuple):
    """Views by step, made once: making them costs more than a step of a small environment."""

    seen: list[dict[str, PyTree]]  # by group: what those see that act here
    acted: list[list[np.ndarray]]  # where their actions and extras go
    first: list[np.ndarray]  # T + 1 of them
    actions: list[dict[str, np.ndarray]]  # by group
    outs: list[HostStep]  # empty where others act too


class Block:
    """Environments that step together."""

    def __init__(
        self, vector: HostVector, envs: range, steps: int, lanes: dict[str, Lane], acting: Acting | None,
        discounts: dict[str, float | None],
    ):  # fmt: skip
        self.vector, self.envs, self.steps, self.lanes, self.acting = vector, envs, steps, lanes, acting
        self.discounts = discounts
        agents = {group: lane.types.agents.agents for group, lane in lanes.items()}
        self.kept = {group: lane for group, lane in lanes.items() if isinstance(lane, Kept)}
        self.history = History(len(envs))
        real = next(iter(lanes.values())).types.real
        self.counter = Counter(len(envs), {group: agents[group] for group in self.kept}, real)
        self.unrolls, self.begun = 0, False
        self.terminated = np.zeros((steps, len(envs)), np.bool_)
        self.truncated = np.zeros((steps, len(envs)), np.bool_)
        self.first = np.ones((steps + 1, len(envs)), np.bool_)
        self._actions = {
            group: np.zeros((steps, len(envs) * agents[group], *lane.types.action.shape), dtype_of(lane.types.action))
            for group, lane in lanes.items()
            if isinstance(lane, Served)
        }
        self._local = [lane for lane in lanes.values() if not lane.asks]
        self._views: dict[tuple[int, ...], Prepared] = {}
        self._now = Prepared([], [], [], [], [])

    def reset(self) -> None:
        """Episode 0 of every environment."""
        self.vector.reset(self._opening())
        self._opened()

    def restore(self, episodes: Sequence[Episode], cut: np.ndarray, unrolls: int) -> None:
        """Stands after so many unrolls with these episodes in progress."""
        self.unrolls = unrolls
        self.vector.restore(episodes, self._opening())
        self.history.restore(episodes, unrolls * self.steps)
        self.first[-1] = self.history.began == self.history.end
        self.counter.forget(cut)
        self._opened()

    def stand(self, unrolls: int, first: np.ndarray, show: Callable[[dict[str, PyTree]], None]) -> None:
        """Stands after so many unrolls where `show` shows it; of environments that keep their own state."""
        self.unrolls = unrolls
        self.history.restore([Episode(0, {}) for _ in self.envs], unrolls * self.steps)
        self.first[-1] = first
        show(self._opening())
        self._opened()

    def _opening(self) -> dict[str, PyTree]:
        return {group: lane.results(-1).observation for group, lane in self.lanes.items()}

    def _opened(self) -> None:
        flags = Flags(self.first[-1], np.zeros_like(self.first[-1]), np.zeros_like(self.first[-1]))
        for lane in self.lanes.values():
            lane.observed(self.steps, flags)

    def ready(self) -> bool:
        return all(lane.ready(self.unrolls) for lane in self.lanes.values())

    def begin(self, version: int) -> None:
        """An unroll begins."""
        self.begun = True
        self.first[0] = self.first[-1]
        if self.acting is not None:
            self.acting.begin(self.unrolls)
            version = self.acting.version
        for lane in self.lanes.values():
            lane.begin(self.unrolls, version)
        if self.acting is not None:
            for group, memory in self.acting.memory().items():
                self.kept[group].remember(memory)
        self._now = self._prepared()
        flags = Flags(self.first[0], self.first[0], self.first[0])
        for lane in self.kept.values():
            if lane.asks:
                lane.observed(0, flags)

    def act(self, t: int) -> dict[str, np.ndarray]:
        """The actions of step `t`, by group."""
        now = self._now
        if self.acting is not None:
            for row, value in zip(now.acted[t], self.acting.act(t, now.seen[t], now.first[t]), strict=True):
                row[...] = value
            if now.outs:
                return now.actions[t]
        return {group: lane.action(t) for group, lane in self.lanes.items()}

    def step(self, t: int, actions: dict[str, np.ndarray]) -> None:
        """Steps the environments and tells every lane."""
        now = self._now
        out = now.outs[t] if now.outs else self._out(t)
        self.vector.step(actions, out)
        np.logical_or(out.terminated, out.truncated, now.first[t + 1])
        if not now.outs:
            self._tell(t, actions, out)

    def _out(self, t: int) -> HostStep:
        """Where step `t` writes."""
        results = {group: lane.results(t) for group, lane in self.lanes.items()}
        return HostStep(
            observation={group: result.observation for group, result in results.items()},
            reward={group: result.reward for group, result in results.items()},
            terminated=self.terminated[t],
            truncated=self.truncated[t],
            last_observation={group: result.last_observation for group, result in results.items()},
        )

    def _tell(self, t: int, actions: dict[str, np.ndarray], out: HostStep) -> None:
        """Hands on what a step gave, to those who act elsewhere."""
        for group, kept in self._actions.items():
            kept[t] = actions[group]
        flags = Flags(self.first[t + 1], out.terminated, out.truncated)
        for lane in self.lanes.values():
            lane.observed(t + 1, flags)

    def _prepared(self) -> Prepared:
        """The views that the steps of an unroll read and write in the slots just taken; made once for each."""
        slots = tuple(id(lane.slot) for lane in self.kept.values())
        if slots not in self._views:
            local = [self.kept[lane.group] for lane in self._local]
            steps = range(self.steps)
            self._views[slots] = Prepared(
                seen=[{lane.group: lane.seen(t) for lane in local} for t in steps],
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
        ended = self.first[1:]
        actions = {g: lane.slot.named["action"][0] for g, lane in self.kept.items()} | self._actions
        self.history.add({g: self._by_environment(action, g) for g, action in actions.items()}, ended)
        finish(self.kept, self.counter, self.discounts, self.terminated, self.truncated, self.first)
        self.unrolls += 1
        self.begun = False

    def _by_environment(self, action: np.ndarray, group: str) -> np.ndarray:
        agents = self.lanes[group].types.agents.agents
        return action if agents == 1 else action.reshape(len(action), len(self.envs), agents, *action.shape[2:])


def finish(
    kept: dict[str, Kept], counter: Counter, discounts: dict[str, float | None], terminated: np.ndarray,
    truncated: np.ndarray, first: np.ndarray,
) -> None:  # fmt: skip
    """Counts an unroll and hands it over; `first` [T + 1, E] has a row for what comes after it."""
    ended = first[1:]
    rewards = {group: lane.slot.named["reward"][0] for group, lane in kept.items()}
    before = {group: total.copy() for group, total in counter.discounted.items()}
    returns, lengths = counter.unroll(rewards, ended)
    for group, reward in rewards.items():
        counter.discount(group, reward, ended, discounts.get(group))
    unroll = Unrolled(terminated, truncated, first[:-1], ended, before, returns, lengths)
    for lane in kept.values():
        lane.finish(unroll)


class Player:
    """All blocks of one worker.

    `gate` waits until a block may begin an unroll and gives the version to tell; `early` gives one where a block may
    begin at once while others still play, else None. `started` is called once the state is no more that between two
    unrolls: with the first action, or, where others act on what they are asked at once, with the first question.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        gate: Callable[[Block], int],
        early: Callable[[Block], int | None] = lambda block: None,
        started: Callable[[], None] = lambda: None,
        asks_count: bool = False,
    ):
        self.blocks, self.gate, self.early = list(blocks), gate, early
        self.started, self.asks_count = started, asks_count
        self.environment_s, self.act_s = 0.0, 0.0

    @property
    def between_unrolls(self) -> bool:
        return not any(block.begun for block in self.blocks)

    def unroll(self) -> None:
        """One unroll of every block, in turns of a step: while one waits for its actions, others step."""
        collecting = gc.isenabled()
        gc.disable()  # steps make many small objects; what garbage there is among them can wait for the unroll's end
        try:
            self._unroll()
        finally:
            if collecting:
                gc.enable()

    def _unroll(self) -> None:
        clock = time.perf_counter
        steps = self.blocks[0].steps
        for block in self.blocks:
            if not block.begun:
                version = self.gate(block)
                if self.asks_count:
                    self.started()
                block.begin(version)
        for t in range(steps):
            for block in self.blocks:
                started = clock()
                actions = block.act(t)
                acted = clock()
                if t == 0:
                    self.started()
                block.step(t, actions)
                self.act_s += acted - started
                self.environment_s += clock() - acted
                if t + 1 == steps:
                    block.finish()
                    version = self.early(block)
                    if version is not None:
                        block.begin(version)


_NOWHERE = np.zeros(0)


def _copy(target: PyTree, source: PyTree) -> None:
    for to, value in zip(leaves(target), leaves(source), strict=True):
        to[...] = value
