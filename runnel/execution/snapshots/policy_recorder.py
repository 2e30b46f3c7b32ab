"""Stores the snapshots of a run in the policy store, and has them evaluated.

The session passes on the snapshots that its program takes, and the states of every checkpoint. Evaluations return while
training continues, or before it continues (`--eval-wait`). Their results are written to `evaluations.jsonl`, and into
the metadata of the snapshot, whose score decides which policy is best.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel.config import serialization
from runnel.config.run_config import RunConfig
from runnel.errors import RunFailed, UserError, nearest
from runnel.execution.building import BuiltRun
from runnel.execution.snapshots.descriptions import described_policies
from runnel.execution.snapshots.evaluation_task import MakeEvaluator, make_evaluator_of, task_of
from runnel.execution.snapshots.evaluators import Evaluated, Evaluators, InProcessEvaluators, wait_for
from runnel.graph.nodes import Graph
from runnel.launch.standalone import StandaloneLauncher
from runnel.policy import Policies, Policy
from runnel.recording.evaluation_log import EvaluationLog, read_evaluations
from runnel.recording.events import ReportEvent
from runnel.recording.files import one_line
from runnel.recording.policy_store import ABANDONED, SCORE, PolicyStore, Retention
from runnel.reporting.statistics import evaluation_statistics, flat
from runnel.runtime.programs.snapshots import MOST_WAITING, TakenSnapshot
from runnel.system.platform import check_worker_processes

SEED_OFFSET: Final = 10_000
"""Added to a run's seed if no evaluation seed is given, because the run was trained on its own episodes."""

DETAIL: Final = 2000
"""The number of characters of an error that are kept with its event."""

LOWEST: Final = "min:"
"""The prefix of the name of a metric for which lower is better."""


class RecordedEvaluation(NamedTuple):
    """An evaluation as in evaluations.jsonl, and the evaluated snapshot."""

    found: dict[str, Any]
    snapshot: TakenSnapshot


class PolicyRecorder:
    """The policies of one run and their evaluations.

    It is one class because storing and evaluating depend on each other: a snapshot may be pruned only once its score is
    known, and a rollback to a checkpoint reverts both.
    """

    def __init__(
        self, run_dir: Path, config: Mapping[str, Any], asked: RunConfig, built: BuiltRun, report_event: ReportEvent,
        stop: Callable[[], bool], launcher: Callable[[], StandaloneLauncher],
        make_evaluator: MakeEvaluator = make_evaluator_of,
    ):  # fmt: skip
        """`stop`: whether the user has asked the run to end. `launcher` creates the launcher of evaluation workers;
        `make_evaluator` the evaluators of this process."""
        self._make_evaluator = make_evaluator
        self.asked, self._report_event, self._stop = asked, report_event, stop
        self._store, self.log = PolicyStore(run_dir), EvaluationLog(run_dir)
        self._writes: deque[Future[None]] = deque()  # to the store, in order, in a thread of their own
        self._writer = ThreadPoolExecutor(1, "policy store")
        self.left_out = 0  # snapshots for evaluations that learners did not send
        self.rule = Retention(asked.keep_every, asked.keep_every_s, asked.keep_best)
        self._described, self._algorithm = described_policies(built, config), built.algorithm
        self._learning = built.graph.learning_groups
        self._evaluators = self._make_evaluators(run_dir, config, built, launcher)
        self._pinned: dict[str, set[int]] = {}  # by group: versions that are kept whatever the rule says
        self._taken_at = -1  # environment steps of the newest snapshot that was due
        self._evaluated_at = -1  # and of the newest that was sent to be evaluated
        self.newest: dict[str, Any] | None = None  # the newest evaluation
        self.best: dict[str, Any] | None = None  # of those that have a score
        self.highest = -math.inf  # of the mean returns

    @property
    def store(self) -> PolicyStore:
        """The store, with all that was given to it."""
        self.settle()
        return self._store

    def settle(self) -> None:
        """Waits until all is stored that was given to be stored."""
        while self._writes:
            self._writes.popleft().result()

    def _write(self, write: Callable[[], None]) -> None:
        """Changes the store after all changes before, while training continues, if not too many wait."""
        while len(self._writes) > MOST_WAITING:
            self._writes.popleft().result()
        self._writes.append(self._writer.submit(write))

    @property
    def reached(self) -> bool:
        """Whether an evaluation has found the return that ends the run."""
        target = self.asked.stop_at_eval_return
        return target is not None and self.highest >= target

    def _make_evaluators(
        self, run_dir: Path, config: Mapping[str, Any], built: BuiltRun, launcher: Callable[[], StandaloneLauncher]
    ) -> Evaluators | None:
        asked = self.asked
        if asked.eval_every is None:
            return None
        check_metric(asked.eval_metric, built.graph)
        seed = asked.seed + SEED_OFFSET if asked.eval_seed is None else asked.eval_seed
        task = task_of(built, asked.eval_env_settings or {}, asked.eval_episodes, seed, asked.eval_explore)
        workers = asked.eval_workers
        if workers is None:
            workers = 1 if built.plan.workers > 1 else 0
        if not workers:
            return InProcessEvaluators(task, self._stop, self._remark, make=self._make_evaluator)
        for part in ("algorithm", "environment"):
            why = serialization.reason(config[part])
            if why is not None:
                raise UserError(
                    f"eval_workers={workers}: found an {part} that another process cannot make, expected one that it "
                    f"can ({why}); eval_workers=0 evaluates in this process",
                    keywords=("eval_workers",),
                )
        check_worker_processes(
            f"eval_workers={workers}", "eval_workers=0 evaluates in this process", keywords=("eval_workers",)
        )
        from runnel.execution.snapshots.evaluation_workers import EvaluationWorkers

        return EvaluationWorkers(task, workers, run_dir / "logs", asked.hang_after_s, self._report_event, launcher)

    @property
    def evaluates_here(self) -> bool:
        """Whether evaluations are played in this process."""
        return isinstance(self._evaluators, InProcessEvaluators)

    @property
    def steps(self) -> int:
        """Steps of environments that evaluation has taken in this process."""
        return 0 if self._evaluators is None else self._evaluators.steps

    # Snapshots

    def policies(self, snapshot: TakenSnapshot) -> Policy | Policies:
        """The policies of a snapshot, ready to act."""
        made = {
            group: Policy(
                self._algorithm.for_group(group),
                replace(self._described[group], version=snapshot.versions[group], env_steps=snapshot.env_steps),
                arrays,
                device="cpu",
            )
            for group, arrays in snapshot.arrays.items()
        }
        return next(iter(made.values())) if len(made) == 1 else Policies(made)

    def take(self, snapshot: TakenSnapshot) -> None:
        """Stores a snapshot that was due, and has it evaluated."""
        self._write(lambda: self._keep(snapshot))
        if snapshot.mark < 0:
            return
        # Not the mark itself: a snapshot may be due for several reasons, of which the mark names the latest.
        due, self._taken_at = self.evaluation_due(snapshot.env_steps), snapshot.env_steps
        if due:
            self._submit(snapshot, must=self.asked.eval_wait)

    def keep(self, snapshot: TakenSnapshot) -> None:
        """Stores a snapshot before it returns, unless the store has it already. A full disk does not end a run."""
        self.settle()
        self._keep(snapshot)

    def _keep(self, snapshot: TakenSnapshot) -> None:
        with self._storing():
            self._add(snapshot)
            if self._evaluators is None or snapshot.mark < 0:
                self._store.prune(self.rule, self._pinned)

    def pin(self, group: str, versions: set[int]) -> None:
        """Keeps these versions of a group regardless of the retention rule, which applies again to versions pinned
        before."""
        self.settle()
        self._pinned[group] = versions

    def _add(self, snapshot: TakenSnapshot) -> None:
        for group, arrays in snapshot.arrays.items():
            version = snapshot.versions[group]
            known = self._store.query(group, version=version)
            if known and known[0].abandoned:
                self._store.annotate(group, version, {ABANDONED: False})  # the run has reached this point again
            if not known:
                config = replace(self._described[group], version=version, env_steps=snapshot.env_steps)
                self._store.add(config, arrays)

    @contextlib.contextmanager
    def _storing(self, what: str = "a policy") -> Iterator[None]:
        try:
            yield
        except (OSError, UserError) as error:
            reason = f"{what} could not be stored: {one_line(error)}"
            self._report_event("policy_failed", reason=reason, action="training continues")

    def finish(self, snapshot: TakenSnapshot) -> Iterable[RecordedEvaluation]:
        """Evaluates the final parameters, and waits for all evaluations."""
        if self._evaluators is None:
            return []
        if self._evaluated_at != snapshot.env_steps:
            self._submit(snapshot, must=True)
        return self.wait()

    def rewind(self, env_steps: int) -> None:
        """Training returns to an earlier point: drops later snapshots and evaluations, which will be repeated."""
        # Pools of opponents keep the decision that they began with, and with it the policies of step 0.
        self.store.rewind(max(env_steps, 0) if self._pinned else env_steps)
        self.log.rewind(env_steps)
        if self._evaluators is not None:
            self._evaluators.rewind(env_steps)
        self.highest, self.newest, self.best = -math.inf, None, None
        for found in read_evaluations(self.log.run_dir):
            self._note(found)
        logged = -1 if self.newest is None else self.newest["env_steps"]
        self._taken_at = env_steps
        self._evaluated_at = max(min(self._evaluated_at, env_steps), logged)

    def catch_up(self, snapshot: TakenSnapshot, steps_per_iteration: int) -> None:
        """A run resumes with these parameters: evaluates them if that was due but not done when it was interrupted."""
        if self._evaluators is not None and self._evaluated_at < snapshot.env_steps:
            self._taken_at = snapshot.env_steps - steps_per_iteration
            self.take(replace(snapshot, mark=snapshot.env_steps))

    # Evaluations

    def _submit(self, snapshot: TakenSnapshot, must: bool) -> None:
        assert self._evaluators is not None
        if snapshot.env_steps != self._evaluated_at:
            self._evaluated_at = snapshot.env_steps
            self._evaluators.submit(snapshot, must)

    def evaluation_due(self, env_steps: int) -> bool:
        """Whether a snapshot up to these steps is to be evaluated that was not handed over yet."""
        every = self.asked.eval_every
        return every is not None and env_steps // every > self._taken_at // every

    def poll(self) -> list[RecordedEvaluation]:
        """The evaluations that are done since the last call, oldest first."""
        return [] if self._evaluators is None else list(filter(None, map(self._record, self._evaluators.poll())))

    def wait(self) -> Iterable[RecordedEvaluation]:
        """Waits until nothing is left to evaluate; yields each evaluation as it is finished."""
        if self._evaluators is None:
            return []
        limit_s = 3 * (self.asked.hang_after_s + 600.0)
        return filter(None, map(self._record, wait_for(self._evaluators, self._stop, limit_s, self._remark)))

    def _record(self, done: Evaluated) -> RecordedEvaluation | None:
        snapshot, played = done.snapshot, done.played
        if played is None:
            return self._failed(snapshot, done.problem, done.detail)
        if problem := played.problem():
            return self._failed(snapshot, problem)
        for note in played.notes:
            self._report_event("evaluation", reason=f"at {snapshot.env_steps:,} steps: {note}", action="counted")
        found = {
            "env_steps": snapshot.env_steps,
            "versions": snapshot.versions,
            **evaluation_statistics(
                played.returns, played.lengths, played.metrics, played.learner_returns, self._learning
            ),
            "seconds": done.seconds,
        }
        found["score"] = self._score(found)
        found["notes"] = list(played.notes)
        with self._storing("an evaluation"):
            self.log.add(found)
        self._write(lambda: self._annotate(snapshot, found))
        self._note(found)
        return RecordedEvaluation(found, snapshot)

    def _annotate(self, snapshot: TakenSnapshot, found: dict[str, Any]) -> None:
        with self._storing():
            self._add(snapshot)  # it may have been removed meanwhile: it had no score, and newer ones arrived
            for group, version in snapshot.versions.items():
                summary = {**flat(found), SCORE: found["score"], "episodes": found["episodes"]}
                self._store.annotate(group, version, summary)
            self._store.prune(self.rule, self._pinned)

    def _remark(self, text: str) -> None:
        self._report_event("evaluation", reason=text, action="training waits for it")

    def _failed(self, snapshot: TakenSnapshot, problem: str, detail: str = "") -> None:
        """Ends a run whose training waits for an evaluation that failed; other runs only record it."""
        if self.asked.eval_wait:
            raise RunFailed(f"the evaluation at {snapshot.env_steps:,} steps failed: {problem}")
        reason = f"the evaluation at {snapshot.env_steps:,} steps failed: {problem}"
        action = "training continues, the next one is due as usual"
        self._report_event("evaluation_failed", reason=reason, action=action, detail=detail[-DETAIL:])

    def _score(self, found: dict[str, Any]) -> float | None:
        """The score of an evaluation; None if it has no such metric."""
        try:
            return score_of(flat(found, ""), self.asked.eval_metric)
        except RunFailed as missing:
            if self.asked.eval_wait:
                raise
            reason = f"at {found['env_steps']:,} steps: {missing}"
            self._report_event("evaluation", reason=reason, action="it cannot be the best; training continues")
            return None

    def _note(self, found: dict[str, Any]) -> None:
        self.newest = found
        score = found.get("score")  # without one it cannot be the best
        if score is not None and (self.best is None or score > self.best["score"]):
            self.best = found
        self.highest = max(self.highest, found["mean_return"])

    def metrics(self) -> dict[str, float]:
        """The newest evaluation, as metrics."""
        if self.newest is None:
            return {}
        return {"eval/env_steps": self.newest["env_steps"], **flat(self.newest)}

    def result(self) -> dict[str, Any]:
        """The evaluations in result.json."""
        if self._evaluators is None or self.newest is None:
            return {}
        names = ("env_steps", "mean_return", "std_return", "return_interval", "episodes", "score")
        return {
            "evaluation": {name: self.newest[name] for name in names},
            **({} if self.best is None else {"best": {name: self.best[name] for name in names}}),
            "highest_eval_return": self.highest,
            "evaluations_skipped": self._evaluators.skipped + self.left_out,
            **self._places(),
        }

    def _places(self) -> dict[str, Any]:
        """The machine of each evaluation worker, where there are several machines."""
        hosts = {} if self._evaluators is None else self._evaluators.hosts
        return {"evaluation_workers": [{"name": n, "host": host} for n, host in hosts.items()]} if hosts else {}

    def close(self) -> None:
        self._writer.shutdown()  # once all is stored
        if self._evaluators is not None:
            self._evaluators.close()


def check_metric(metric: str | None, graph: Graph) -> None:
    """Refuses a metric that no evaluation reports, and a missing choice where there are several groups."""
    groups, learning = list(graph.spec.groups), graph.learning_groups
    known = ["return", "length", *(f"return/{group}" for group in groups if len(groups) > 1)]
    if metric is None:
        if len(learning) > 1:
            raise UserError(
                f"eval_metric=: found none, expected the metric by which a policy of {len(learning)} groups is best: "
                f"{', '.join(known)} or env/NAME",
                keywords=("eval_metric",),
                page="evaluate",
            )
        return
    name = metric.removeprefix(LOWEST)
    if name not in known and not name.startswith("env/"):
        raise UserError(
            f"eval_metric='{metric}': no evaluation finds it{nearest(name, [*known, 'env/NAME'])}",
            keywords=("eval_metric",),
            page="evaluate",
        )


def score_of(numbers: Mapping[str, float], metric: str | None) -> float:
    """The score of an evaluation: higher is better."""
    name = (metric or "return").removeprefix(LOWEST)
    if name not in numbers:
        raise RunFailed(f"eval_metric={metric}: the evaluation found no {name}{nearest(name, numbers)}")
    return -numbers[name] if metric is not None and metric.startswith(LOWEST) else numbers[name]
