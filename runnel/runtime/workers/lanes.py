"""How a group of agents goes through a block of environments. NumPy only.

A lane knows which worker chooses the group's actions and which receives its observations:

| lane | actions | trajectory |
|---|---|---|
| `LocalPolicyLane` | computed here | put together here |
| `RemotePolicyLane` | asked for elsewhere | put together here |
| `RemoteRolloutLane` | asked for elsewhere | assembled where the actions are chosen |

Headers of messages (`stream_headers.py`) count unrolls and steps from the run's start: a replacement of a worker reads
from its own streams what was sent before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from runnel.planning.schemas import (  # fmt: skip
    Fields,
    GroupTypes,
    all_unroll_fields,
    as_observation,
    each,
    empty,
    leaves,
    parts,
    reply_fields,
    request_fields,
    schema,
    unroll_fields,
)
from runnel.runtime.programs.versions import NO_STAMP, ParameterStamp
from runnel.runtime.recovery.journal import Journal
from runnel.runtime.workers.ports import InPort, OutPort
from runnel.runtime.workers.stream_headers import StepHeader, UnrollHeader, last_step, last_unroll
from runnel.transport.stream import Message, dtype_of
from runnel.types import PyTree


class Results(NamedTuple):
    """The arrays into which a step of the environments writes the results of one group."""

    observation: PyTree
    reward: np.ndarray
    last_observation: PyTree


class Flags(NamedTuple):
    """A block after a step: which episodes begin, and which have ended."""

    first: np.ndarray  # [E]
    terminated: np.ndarray  # [E]
    truncated: np.ndarray  # [E]


class Unrolled(NamedTuple):
    """The results of a complete unroll that all lanes of a block share."""

    terminated: np.ndarray  # [T, E]
    truncated: np.ndarray  # [T, E]
    first: np.ndarray  # [T, E]
    ended: np.ndarray  # [T, E]
    discounted: dict[str, np.ndarray]  # by group: [B] before the unroll
    returns: dict[str, np.ndarray]  # by group: [T, E]
    lengths: np.ndarray  # [T, E]


class Slot:
    """Memory of one unroll of one group, and the views of it that each step reads and writes.

    `unsent`: memory of the fields that are not sent, which steps read and write too.
    """

    def __init__(
        self, types: GroupTypes, fields: Fields, arrays: Sequence[np.ndarray], steps: int,
        unsent: Mapping[str, list[np.ndarray]],
    ):  # fmt: skip
        named = {**parts(fields, arrays), **unsent}
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


class LocalPolicyLane:
    """A lane whose trajectory is assembled here: in the slots of its consumers' streams, or in memory of its own."""

    asks = False

    def __init__(self, types: GroupTypes, group: str, steps: int, envs: int, outs: Sequence[OutPort]):
        self.types, self.group, self.steps, self.envs = types, group, steps, envs
        self.fields = unroll_fields(types, steps, envs)
        every = all_unroll_fields(types, steps, envs)
        self._unsent = {name: empty(every[name]) for name in types.omits}
        self.outs = list(outs)  # one for each replica of each consumer
        self._slots = [[self._made(arrays) for arrays in out.slots] for out in self.outs]
        self._own: Slot | None = None
        columns = envs * types.agents.agents
        shown = empty(each(types.observation, columns))
        self.after = as_observation(types.agents.observation, shown)  # what the next unroll starts from
        self.slot = self._slots[0][0] if self.outs else self._scratch()
        self._to: list[OutPort] = []
        self._stamp, self._unroll = NO_STAMP, 0

    def _made(self, arrays: Sequence[np.ndarray]) -> Slot:
        return Slot(self.types, self.fields, arrays, self.steps, self._unsent)

    def _scratch(self) -> Slot:
        """Memory for an unroll that has no consumer."""
        if self._own is None:
            self._own = self._made(empty(schema(self.fields)))
        return self._own

    def ready(self, unroll: int) -> bool:
        """Whether there is room for an unroll."""
        return all(out.free() for out in self._takers(unroll))

    def has(self, unroll: int) -> bool:
        """Whether every consumer of this unroll has been sent it before."""
        return not self._takers(unroll)

    def begin(self, unroll: int, stamp: ParameterStamp) -> None:
        """Claims a slot of every consumer of the unroll; the parameters of `stamp` or newer ones act in it.

        The first observation is the last one of the unroll before.
        """
        self._to, self._unroll = self._takers(unroll), unroll
        slots = self.acted_by(stamp)
        self.slot = self._slots[self.outs.index(self._to[0])][slots[0]] if slots else self._scratch()
        _copy(self.slot.seen[0], self.after)

    def acted_by(self, stamp: ParameterStamp) -> list[int]:
        """Announces the parameters that act in the unroll in progress; returns the slots that it goes to."""
        self._stamp = stamp
        return [out.claim(stamp.iteration) for out in self._to]

    def remember(self, memory: Sequence[Any]) -> None:
        """The memory before the unroll's first step."""
        for row, value in zip(self.slot.named["memory"], memory, strict=True):
            row[...] = value

    def seen(self, t: int) -> PyTree:
        return self.slot.seen[t] if t < self.steps else self.after

    def action(self, t: int, step: int) -> np.ndarray:
        return self.slot.action[t]

    def results(self, t: int) -> Results:
        """The arrays into which step `t` writes."""
        if t < 0:
            return Results(self.after, _NOWHERE, None)
        results = self.slot.results[t]
        return results if t + 1 < self.steps else results._replace(observation=self.after)

    def observed(self, t: int, step: int, flags: Flags) -> None:
        """The observation of step `t` of the unroll, and `step` of the run, is in place."""

    def finish(self, unroll: Unrolled) -> None:
        """Completes the trajectory and hands it over."""
        slot, agents = self.slot, self.types.agents.agents
        # The last step's successor, which was not written where no episode ended.
        going = np.repeat(~unroll.ended[-1], agents)
        for last, after in zip(leaves(slot.results[-1].last_observation), leaves(self.after), strict=True):
            last[going] = after[going]
        for name in ("terminated", "truncated", "first"):
            slot.named[name][0][...] = getattr(unroll, name)
        slot.named["discounted_sum"][0][...] = unroll.discounted[self.group]
        slot.named["episode_return"][0][...] = unroll.returns[self.group]
        slot.named["episode_length"][0][...] = unroll.lengths
        for out in self._to[1:]:
            claimed = out.claim(self._stamp.iteration)  # the slot that it has
            for to, value in zip(out.slots[claimed], slot.arrays, strict=True):
                to[...] = value
        header = UnrollHeader(self._unroll, self._stamp.versions.get(self.group, 0))
        for out in self._to:
            out.commit(header)

    def _takers(self, unroll: int) -> list[OutPort]:
        """The ports on which this unroll is still to be sent: replicas that read it are in rotation."""
        return [out for out in self.outs if out.takes(unroll) and unroll > last_unroll(out.last_header)]


class RemotePolicyLane(LocalPolicyLane):
    """A lane whose actions another worker serves."""

    asks = True

    def __init__(
        self,
        types: GroupTypes,
        group: str,
        steps: int,
        envs: int,
        outs: Sequence[OutPort],
        request: OutPort,
        reply: InPort,
    ):
        super().__init__(types, group, steps, envs, outs)
        self.request, self.reply = request, reply
        self._requests = [parts(request_fields(types, envs, False), arrays) for arrays in request.slots]
        self._reply_fields = reply_fields(types, envs, True)

    def observed(self, t: int, step: int, flags: Flags) -> None:
        if t == self.steps:
            return  # the next unroll asks, once there is room for it and it is known which parameters act
        named = self._requests[self.request.claim(self._stamp.iteration)]
        for to, value in zip(named["observation"], leaves(self.seen(t)), strict=True):
            to[...] = value
        named["first"][0][...] = flags.first
        self.request.commit(StepHeader(step))

    def action(self, t: int, step: int) -> np.ndarray:
        message = answer(self.reply, step)
        named = parts(self._reply_fields, message.arrays)
        self.slot.action[t][...] = named["action"][0]
        for row, value in zip(self.slot.extras[t] if "extras" in named else (), named.get("extras", ()), strict=True):
            row[...] = value
        if t == 0 and "memory" in named:
            self.remember(named["memory"])
        self.reply.release(message)
        return self.slot.action[t]


class RemoteRolloutLane:
    """A lane whose trajectory is put together by the worker that acts: every step's results go there."""

    asks = True

    def __init__(self, types: GroupTypes, group: str, steps: int, envs: int, request: OutPort, reply: InPort):
        self.types, self.group, self.steps, self.envs = types, group, steps, envs
        self.request, self.reply = request, reply
        fields = request_fields(types, envs, True)
        self._named = [parts(fields, arrays) for arrays in request.slots]
        space = types.agents.observation
        unsent = empty(each(types.observation, envs * types.agents.agents))
        self._results = [
            Results(
                as_observation(space, named["observation"]),
                named["reward"][0],
                as_observation(space, named.get("last_observation", unsent)),
            )
            for named in self._named
        ]
        self._claimed = 0
        self.last_request = last_step(request.last_header)  # of the worker that this one replaces
        self.actions = np.zeros((steps, envs * types.agents.agents, *types.action.shape), dtype_of(types.action))
        self._journal: Journal | None = None
        self._known = 0  # how many steps' actions came to the worker that this one replaces

    def keep_in(self, journal: Journal) -> None:
        """Keeps the actions of the unroll in progress in a journal from now on, and takes those that are there."""
        self._journal, self.actions, self._known = journal, journal.acted[self.group], journal.known(self.group)

    def ready(self, unroll: int) -> bool:
        return True

    def begin(self, unroll: int, stamp: ParameterStamp) -> None:
        pass

    def results(self, t: int) -> Results:
        self._claimed = self.request.claim(0)
        return self._results[self._claimed]

    def observed(self, t: int, step: int, flags: Flags) -> None:
        if step <= self.last_request:
            return  # it was sent before
        named = self._named[self._claimed]
        for name, value in flags._asdict().items():
            named[name][0][...] = value
        self.request.commit(StepHeader(step))

    def action(self, t: int, step: int) -> np.ndarray:
        row = self.actions[t]
        if step < self._known:
            return row
        message = answer(self.reply, step)
        row[...] = message.arrays[0]
        if self._journal is not None:
            self._journal.note(self.group, step)
        self.reply.release(message)
        return row


Lane = LocalPolicyLane | RemotePolicyLane | RemoteRolloutLane


def answer(reply: InPort, step: int) -> Message:
    """The reply to a step's request. Other replies were meant for the worker that this one replaces."""
    while True:
        message = reply.receive()
        if StepHeader.unpack(message.header).step == step:
            return message
        reply.release(message)


_NOWHERE = np.zeros(0)


def _copy(target: PyTree, source: PyTree) -> None:
    for to, value in zip(leaves(target), leaves(source), strict=True):
        to[...] = value
