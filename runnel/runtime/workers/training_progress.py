"""The progress of one worker's training, and its reports to the supervisor."""

from __future__ import annotations

import time

import jax
import numpy as np

from runnel.runtime.control_messages import EpisodeWindow, Go, ProgressReport, StalenessSums
from runnel.runtime.programs import totals
from runnel.runtime.programs.versions import Acted, Staleness
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.ports import REPORT_S
from runnel.runtime.workers.trainer import Trainer


class TrainingProgress:
    """Environment steps, updates, staleness and episodes; and how far training is to go."""

    def __init__(self, a: Assignment, trainer: Trainer):
        self.a, self.context, self.trainer = a, a.context, trainer
        self.env_steps, self.episodes = int(a.start.saved.get(names.ENV_STEPS, np.int64(0))), 0
        self.until, self.target, self.reached = 0, float("inf"), False
        self.staleness = Staleness()
        self.repeated, self.dropped = 0, 0  # updates from unrolls that were learnt from before; batches dropped unused
        self.learners = [node for node in trainer.stage.nodes if node.traits.learns]
        self.versions: dict[str, int] = {}  # by group: the updates of the state that the trainer has
        self._read_versions()
        self._mean = jax.jit(totals.window_mean_of)
        self._reported = 0.0

    # Counting

    def add_iteration(self) -> None:
        """The trainer has run an iteration."""
        graph = self.trainer.graph
        self._measure_staleness()
        if graph is self.a.run_graph:
            self.env_steps = self.trainer.iteration * graph.steps_per_iteration
        else:
            self.env_steps += graph.steps_per_iteration
        if any(node.replays for node in self.learners):
            self._read_versions()  # how often a replay was learnt from is known to the device alone
            return
        self._add_updates()

    def add_repetition(self) -> None:
        """The trainer has learnt once more from the unrolls of the last iteration."""
        self._measure_staleness()
        self.repeated += len(self.learners)
        self._add_updates()

    def _add_updates(self) -> None:
        for node in self.learners:
            self.versions[node.group] += 1
        self._count_updates()

    def add_gradients(self, group: str, acted: list[Acted], env_steps: int) -> None:
        """The trainer is about to apply gradients made of unrolls that these versions acted in."""
        for each in acted:
            self.staleness.add(self.versions[group], each)
        self.env_steps += env_steps

    def gradients_applied(self) -> None:
        self._read_versions()

    def _measure_staleness(self) -> None:
        """How old the unrolls were: at each update from them or, of a replay, as they came into it."""
        for group in dict.fromkeys(node.group for node in self.learners):
            updates = sum(node.group == group and not node.replays for node in self.learners)
            for k in range(max(1, updates)):
                self.staleness.add(self.versions[group] + k, self.trainer.acted_in(group))

    def _read_versions(self) -> None:
        self.versions = {group: int(count) for group, count in self.trainer.carry.updates.items()}
        self._count_updates()

    def _count_updates(self) -> None:
        self.context.counts["updates"] = sum(self.versions[group] for group in {node.group for node in self.learners})

    # How far it is to go

    def on_go(self, command: Go) -> None:
        self.until = command.until_env_steps
        self.target = float("inf") if command.target_return is None else command.target_return

    def complete(self) -> bool:
        """Whether all steps are made, or the target return is reached."""
        self.reached = self._window_mean() >= self.target
        return self.env_steps >= self.until or self.reached

    def iteration(self) -> int | None:
        """How far a learner is; None where it is at the end, which is the same iteration for all."""
        return self.trainer.iteration if self.env_steps < self.until else None

    def _window_mean(self) -> float:
        """The mean return that is to reach the target; NaN where there is none, or it is not known here."""
        if self.target == float("inf") or not self.a.counted_groups:
            return float("nan")
        return float(self._mean(self.trainer.carry.window))

    # Reports

    def report_if_due(self) -> None:
        if time.monotonic() - self._reported > REPORT_S:
            self.report()

    def report(self) -> None:
        """Sends the sums since the last report."""
        trainer = self.trainer
        self._reported = time.monotonic()
        summed = totals.summed(jax.device_get(trainer.metrics))
        trainer.metrics.clear()
        self.episodes += summed.episodes
        window = None
        if self.a.counted_groups:
            window = EpisodeWindow(**totals.window_json(jax.device_get(trainer.carry.window)))
        report = ProgressReport(
            iterations=trainer.iteration,
            env_steps=self.env_steps,
            rank=self.a.spec.replica if self.a.spmd is not None else 0,
            target_reached=self.reached,
            updates=int(self.context.counts["updates"]),
            updates_by_node=summed.updates,
            out_sums=summed.out,
            refused_updates=dict(summed.broken),
            episodes=self.episodes,
            window=window,
            staleness=StalenessSums(*self.staleness.json()),
            repeated=self.repeated,
            dropped=self.dropped,
        )
        self.context.send(report)
