"""Reading the parameters that learners elsewhere publish, and publishing those that are learnt here."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.versions import ParameterStamp, required
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.ports import OutPort
from runnel.types import PyTree


class ParameterReader:
    """The newest state of every group that is learnt elsewhere and used here."""

    def __init__(self, a: Assignment):
        self._a, self._context = a, a.context
        self.stores = {group: reader for group, (_, reader) in a.ends.readers.items()}
        self.versions: dict[str, int] = {}  # by group: the updates of what was read last
        self.iterations: dict[str, int] = {}  # by group: the iteration of what was read last
        self._params: dict[str, PyTree] = {}

    def for_acting(self, unroll: int) -> tuple[ParameterStamp, dict[str, PyTree]]:
        """The parameters of an unroll: those of its iteration, or the newest where staleness is allowed."""
        for group in self.stores:
            self.wait(group, self.required(group, unroll))
            state = self.read_newer(group)
            if state is not None:
                self._params[group] = state.params
        return ParameterStamp(min(self.iterations.values()), dict(self.versions)), self._params

    def required(self, group: str, iteration: int) -> int:
        """The oldest iteration whose parameters may be used in another iteration."""
        return required(iteration, self._a.leads[group])

    def wait(self, group: str, iteration: int) -> None:
        """Waits until the parameters of an iteration, or newer ones, are published."""
        reader = self.stores[group]
        if reader.iteration() < iteration:
            self._context.wait(lambda: reader.iteration() >= iteration or None, "parameters")

    def read_newer(self, group: str) -> PyTree | None:
        """The learner's state, on the device; None where what was read last is still the newest."""
        reader = self.stores[group]
        if self.iterations.get(group) == reader.iteration():
            return None
        newest = reader.read()
        self.iterations[group], self.versions[group] = newest.iteration, newest.version
        structure = jax.tree.structure(self._a.published_state(group))
        return jax.tree.unflatten(structure, jax.device_put(newest.arrays))


class RemoteStates:
    """Keeps the states of groups that are learnt elsewhere up to date in a trainer's carry."""

    def __init__(self, a: Assignment, reader: ParameterReader):
        self._a, self._reader = a, reader

    def refresh(self, carry: Carry, iteration: int, messages: int, outgoing: Iterable[OutPort]) -> int:
        """Puts the newest states into the carry; returns the iteration of the parameters in it.

        `messages`: how many the trainer has sent. At a barrier each of its gradients leads to a new state; other values
        are one an iteration.
        """
        a, reader, newest = self._a, self._reader, 0
        for group in a.remote_groups:
            channel, store = a.ends.readers[group]
            reader.wait(group, reader.required(group, messages if channel.whole and not a.free else iteration))
            if channel.whole or a.gathered:
                # Before the state is read: meanwhile the value's consumer must not expect a newer one.
                for port in outgoing:
                    port.claim(store.iteration())
            state = reader.read_newer(group)
            if state is not None:  # else it is in the carry, and only there: programs take the carry's memory over
                carry.states[group] = state
                carry.updates[group] = np.int32(reader.versions[group])
            newest = reader.iterations[group]
        return newest


class ParameterPublisher:
    """Publishes the states that are learnt here."""

    def __init__(self, a: Assignment):
        # Learners of one SPMD program all have the same state: the first publishes it.
        self._writers = a.ends.writers if a.spmd is None or not a.spec.replica else {}

    def publish(self, carry: Carry, iteration: int) -> None:
        for group, (channel, writer) in self._writers.items():
            state = carry.states[group]
            leaves = jax.device_get(jax.tree.leaves(state if channel.whole else state.params))
            writer.publish(leaves, int(carry.updates[group]), iteration)
