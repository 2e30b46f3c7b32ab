"""How workers pause, save their parts of a checkpoint, and load them again.

To save, all workers pause between two iterations, in an order that leaves no message in any stream. If some groups are
synchronous and others are not, the asynchronous workers first catch up with the synchronous learners: all then pause at
the same iteration. Each then sends its part. To load, all workers drop what they are doing and wait; processes that are
gone or do not answer are started again; then each worker receives the arrays that it needs.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from runnel.execution.supervision.supervisor import POLL_S, Supervisor
from runnel.planning.channels import WorkerSpec
from runnel.runtime.control_messages import Pause, Reset, Save
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.worker_checkpoint import Arrays

PAUSE_S = 120.0
"""How long workers may take to pause: an iteration, and what they compile in it; and how long to save."""

NOT_YET = sys.maxsize
"""Placeholder iteration: the worker keeps going until a second `Pause` names one."""

RESET_S = 15.0
"""How long a worker may take to drop what it is doing; a slower one is started again."""


class CheckpointProtocol:
    """Checkpoints of all workers of a run."""

    def __init__(self, supervisor: Supervisor):
        self.supervisor, self.group = supervisor, supervisor.group
        self.graph, self.plan, self.topology = self.group.graph, self.group.plan, self.group.topology
        self.learners = self.group.learners
        # Learners of synchronous groups are in step with each other, and everyone who steps environments with them.
        self.lockstep_learners = {name for name in self.learners if self._is_synchronous(name)}
        self.catching_up = self._training() - self.lockstep_learners if self.plan.mixed else set()
        self._pause_at = 0  # the iteration at which learners that are in step pause, once they had to be aligned
        self._notified: set[str] = set()  # the workers that know of the pause in progress

    def _is_synchronous(self, learner: str) -> bool:
        nodes = self.plan.fragment(self.group.specs[learner].fragment).nodes
        groups = {self.graph.nodes[node].group for node in nodes} - {""}
        return any(not self.plan.limit_iterations[group] for group in groups)

    def _training(self) -> set[str]:
        """The workers that process unrolls."""
        fragments = [f for f in self.plan.fragments if any(self.graph.nodes[node].traits.trains for node in f.nodes)]
        return {name for fragment in fragments for name in fragment.workers()}

    # Saving

    def save(self) -> Arrays:
        """Pauses all workers between two iterations and collects their parts. They stay paused."""
        records = self.supervisor.records
        self._pause_at = 0
        for record in records.values():
            record.pause_at, record.saved = 0, {}
            if record.paused:
                record.state = "paused"
        self._notified = set()
        for stage in self._stages():
            behind = max(map(self._behind, stage), default=0)
            for name in stage:
                self._pause(name)
            limit_s = (1 + behind) * max(PAUSE_S, 1.5 * self.supervisor.deadlocks.limit_s)
            self.supervisor.wait_until(self._all_paused, limit_s, "pause")
        self.supervisor.wait_until(self._all_saved, PAUSE_S, "save")
        arrays: Arrays = {}
        for name in sorted(records, key=lambda name: name in self.learners):  # learners override the others
            arrays |= records[name].saved
        for counter in (names.ITERATION, names.ENV_STEPS):  # asynchronous learners may be at different ones
            arrays[counter] = max(records[name].saved[counter] for name in self.learners)
        for record in records.values():
            record.saved = {}
        return arrays

    def _pause(self, name: str) -> None:
        """Asks a worker to pause, unless it has paused where it is to."""
        if not self.supervisor.records[name].paused or self._behind(name):
            self._notified.add(name)
            self.supervisor.pause(name, self._synchronous_iteration() if name in self.catching_up else 0)

    def _behind(self, name: str) -> int:
        """How many iterations a worker has to catch up with synchronous learners, which have paused."""
        report = self.supervisor.progress.last.get(name)
        if name not in self.catching_up or report is None:
            return 0
        return max(0, self._synchronous_iteration() - report.iterations)

    def _synchronous_iteration(self) -> int:
        """The iteration at which synchronous learners have paused. Each reports it before it pauses."""
        reports = self.supervisor.progress.last
        return max((reports[name].iterations for name in self.lockstep_learners if name in reports), default=0)

    def _stages(self) -> list[set[str]]:
        """The sets of workers that pause one after the other, so that no message is left between two iterations.

        - Learners of synchronous groups pause first: every worker that steps environments waits for them.
        - Asynchronous workers do not wait. The first to pause are those that make unrolls; then those that process
          them, in the order of the data flow, because a paused worker makes no room for the one before it; then the
          learner. Beside a synchronous group each of these first catches up: nothing is left on its way.
        - Several asynchronous learners pause before those, if no group is synchronous, at an iteration that they agree
          on. Paused, they discard what arrives, unless unrolls are taken in order.
        - A worker that acts in step with environments elsewhere, for an asynchronous group, pauses before them.
          Otherwise it would wait for the rest of an unroll.
        """
        everyone, learners = set(self.group.specs), self.learners - self.lockstep_learners
        stepping = set(self.plan.stepping.workers())
        servers = {n for node in self.graph.of_kind("act") for n in self.plan.home(node.name).workers()} - stepping
        nodes = list(self.graph.nodes)  # in the order of the data flow
        flows = sorted(self.plan.fragments, key=lambda fragment: min(map(nodes.index, fragment.nodes)))
        makers = [set(fragment.workers()) - stepping - servers - learners for fragment in flows]
        others = [stepping - learners, servers - learners, *makers]
        if not learners:
            return [self.lockstep_learners, everyone - self.lockstep_learners]
        rolls = self._acting_in_step() - stepping
        order = [learners, *others] if len(learners) > 1 and not self.lockstep_learners else [*others, learners]
        lockstep = self.lockstep_learners
        return [lockstep, rolls - lockstep, *(stage - rolls - lockstep for stage in order)]

    def _acting_in_step(self) -> set[str]:
        """The workers that act in step for asynchronous groups."""
        acts = [node for node in self.graph.of_kind("act") if node.group in self.plan.step_synchronous]
        free = [node for node in acts if self.plan.limit_iterations[node.group]]
        return {name for node in free for name in self.plan.home(node.name).workers()}

    def _all_paused(self) -> bool:
        self._align()
        self._wake()
        self._notify()
        return not any(record.state == "pausing" for record in self.supervisor.records.values())

    def _align(self) -> None:
        """Makes learners that are in lockstep pause at the same iteration.

        One may have paused while another had begun the next iteration, which it cannot finish without the first. No
        learner can be further ahead than that, so all continue to the end of that iteration, once.
        """
        records = {name: self.supervisor.records[name] for name in self.lockstep_learners}
        late = [record for record in records.values() if record.state == "pausing"]
        early = [r.paused_at for r in records.values() if r.paused and r.paused_at is not None]
        if self._pause_at or not early or not late or not all(map(self.supervisor.deadlocks.waits, late)):
            return
        self._pause_at = max(early) + 1
        for name in self.lockstep_learners:
            self.supervisor.pause(name, self._pause_at)

    def _wake(self) -> None:
        """Lets asynchronous learners that rest at the target return go on while synchronous ones are to pause.

        These may wait for unrolls that actors begin only once the others have learnt more.
        """
        records = self.supervisor.records
        if not any(records[name].state == "pausing" for name in self.lockstep_learners):
            return
        for name in self.catching_up & self.learners:
            if records[name].paused and records[name].paused_at is not None:
                records[name].state = "running"
                self.supervisor.send(name, Pause(NOT_YET))

    def _notify(self) -> None:
        """Notifies learners that have paused by themselves, at the end of training, that the others pause too."""
        for name in self.learners - self._notified:
            if self.supervisor.records[name].paused:
                self._notified.add(name)
                self.supervisor.send(name, Pause(self.supervisor.records[name].pause_at))

    def _all_saved(self) -> bool:
        records = self.supervisor.records
        for name, record in records.items():  # also a worker that was replaced meanwhile, once it has paused
            if record.state == "paused":
                record.state = "saving"
                self.supervisor.send(name, Save())
        return all(record.state == "saved" for record in records.values())

    # Loading

    def load(self, arrays: Arrays) -> None:
        """Sends each worker its part of a checkpoint; without arrays, workers start from the beginning."""
        for spec in self.topology.workers:
            self.supervisor.load(spec.name, self._part(spec, arrays))

    def _part(self, spec: WorkerSpec, arrays: Arrays) -> Arrays:
        """The arrays of a checkpoint that one worker needs."""
        fragment = self.plan.fragment(spec.fragment)
        trains = any(self.graph.nodes[node].traits.trains for node in fragment.nodes)
        streams, _ = self.topology.of(spec.name)
        blocks = {b.number for b in self.topology.blocks if b.worker == spec.name} | {s.block for s in streams}

        def needed(name: str) -> bool:
            block, node = names.block_number(name), names.replay_node(name)
            if block is not None:
                return block in blocks
            if node is not None:
                return node in fragment.nodes
            return trains or name in (names.ITERATION, names.ENV_STEPS)

        return {name: np.asarray(array) for name, array in arrays.items() if needed(name)}

    def reset(self, recovers: bool = True) -> None:
        """Makes all workers drop their work and wait for `Load`. `recovers`: because something was lost.

        A process is started again if it is gone or does not answer. Several learners that form one program are always
        started again, because they cannot rejoin each other.
        """
        since, group, records = time.monotonic(), self.group, self.supervisor.records
        gone = {mate for name in group.specs if name not in group.processes for mate in group.unit(name)}
        if len(self.learners) > 1:
            gone |= {mate for name in self.learners for mate in group.unit(name) if len(group.unit(name)) > 1}
        for name in set(group.processes) - gone:
            records[name].state = "running"
            self.supervisor.send(name, Reset())
        deadline = time.monotonic() + RESET_S
        while not self._answered(gone) and time.monotonic() < deadline:
            for name in group.poll(POLL_S):
                failed = self.supervisor.receive(name)
                if failed is not None or group.processes[name].exit_status() is not None:
                    gone.add(name)
        silent = {name for name, record in records.items() if record.state != "ready"}
        self.supervisor.restart(gone | silent, since, recovers)

    def _answered(self, gone: set[str]) -> bool:
        return all(name in gone or record.state == "ready" for name, record in self.supervisor.records.items())
