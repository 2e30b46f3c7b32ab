"""Who plays in the opponent pools of a run: past policies of its own, and stored ones of others.

At every decision of a matchmaker, the results since the last one are added to the payoffs, the learner's newest policy
becomes a candidate, and the places of the pool get the policies that the matchmaker names. Decisions depend on the
seed, on their number and on what was trained and played before: a run that goes on from a checkpoint makes the same.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithms.opponent_pool import DRAW, LOSS, WIN, OpponentPool, PoolState
from runnel.errors import UserError
from runnel.execution.building import BuiltRun
from runnel.execution.group_algorithms import policy_of
from runnel.execution.policy_recorder import PolicyRecorder
from runnel.execution.stored_policies import find
from runnel.execution.warm_start import fitted_parameters
from runnel.graph.nodes import Graph
from runnel.matchmaking import Candidate, Matches, Matchmaker, keep_places
from runnel.payoffs import GameResult, PayoffTable
from runnel.population import random_numbers
from runnel.recording.events import ReportEvent
from runnel.recording.files import one_line
from runnel.recording.match_log import FILE, MatchLog, MatchRound, payoffs_of, read_matches
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.types import PyTree

KEPT: Final = 3
"""So many checkpoints are kept, and with them the policies that play there."""

OWN: Final = re.compile(r"(.+):([0-9]{1,18})")
"""The key of a policy of this run: its group and version."""


def pools_in(graph: Graph) -> dict[str, OpponentPool]:
    """By group: the pools of a run."""
    algorithms = {group: graph.algorithm.for_group(group) for group in graph.spec.groups}
    return {group: each for group, each in algorithms.items() if isinstance(each, OpponentPool)}


@dataclass
class _Pool:
    """One group that is played by stored policies."""

    group: str
    algorithm: OpponentPool
    agents: int
    pinned: tuple[Candidate, ...]  # stored policies of other runs
    like: PyTree  # shapes of the state of a policy that can play here
    rounds: list[MatchRound] = field(default_factory=list)

    @property
    def matchmaker(self) -> Matchmaker:
        return self.algorithm.matchmaker

    def past(self, rounds: Sequence[MatchRound] | None = None) -> tuple[Candidate, ...]:
        """Own policies that may play, after these decisions, or all so far."""
        pool: tuple[Candidate, ...] = ()
        for made in self.rounds if rounds is None else rounds:
            own = OWN.fullmatch(made.pool[-1])
            if own and own[1] == self.algorithm.learner:
                newest = Candidate(own[0], int(own[2]), made.env_steps, own[1])
                pool = self.matchmaker.grow(pool, newest, made.round)
        return pool

    def newest(self, versions: Mapping[str, Any], env_steps: int) -> Candidate | None:
        """The learner's policy as it is now."""
        learner = self.algorithm.learner
        if not learner:
            return None
        version = int(versions[learner])
        return Candidate(f"{learner}:{version}", version, env_steps, learner)

    def playing(self) -> Matches | None:
        return Matches(self.rounds[-1].places, self.rounds[-1].probabilities) if self.rounds else None


class Opponents:
    """The opponent pools of one run."""

    def __init__(self, run_dir: Path, built: BuiltRun, seed: int, policies: PolicyRecorder, report_event: ReportEvent):
        self._built, self._seed, self._policies, self._report_event = built, seed, policies, report_event
        self._log = MatchLog(run_dir)
        self._pools = {group: self._made(group, pool) for group, pool in pools_in(built.graph).items()}
        self._schedule = SnapshotSchedule(tuple(pool.matchmaker.every for pool in self._pools.values()))
        self._decided_at = 0
        self._parameters: dict[str, PyTree] = {}  # of those that play
        self._lost: set[str] = set()  # whose parameters could not be read
        self._checkpoints: deque[int] = deque([0], KEPT)  # environment steps of those that a run may return to
        self.read()

    def _made(self, group: str, algorithm: OpponentPool) -> _Pool:
        keys: Sequence[str] = getattr(algorithm.matchmaker, "keys", ())
        pinned = tuple(
            Candidate(key, group=algorithm.learner or group, pinned=True) for key in keys if not OWN.fullmatch(key)
        )
        spec = self._built.graph.spec.groups[group]
        like = jax.eval_shape(lambda key: algorithm.policy.init(key, spec), jax.random.key(0))
        return _Pool(group, algorithm, spec.agents, pinned, like)

    def __bool__(self) -> bool:
        return bool(self._pools)

    # When

    def next_mark(self, env_steps: int) -> int | None:
        """Up to which environment step the same policies play."""
        return self._schedule.next_mark(env_steps)

    def due(self, env_steps: int) -> bool:
        return self._schedule.mark(self._decided_at, env_steps) is not None

    def read(self) -> None:
        """Goes on from the decisions that the run directory has."""
        rounds = read_matches(self._log.run_dir) if self._pools else []
        for group, pool in self._pools.items():
            own = [made for made in rounds if made.group == group]
            pool.rounds = [made for made in own if made.pool and len(made.places) == pool.algorithm.places]
        self._decided_at = max((made.env_steps for made in rounds), default=0)
        self._keep()

    def rewind(self, env_steps: int) -> None:
        """Training returns to an earlier point: decisions that were made later will be made again."""
        if self._pools:
            self._log.rewind(max(0, env_steps))
            self._parameters = {}  # a version that is trained again may become another policy
            self._checkpoints.append(max(0, env_steps))
            self.read()

    def saved(self, env_steps: int) -> None:
        """A checkpoint was written: the run may return to it, and to those policies."""
        self._checkpoints.append(env_steps)

    # Decisions

    def begin(self, initial: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """The first decision: the states of all pools, where learners begin with `initial` or fresh states."""
        # What a start that was killed has left behind is not of this run.
        self._log.rewind(-1)
        self._decided_at = 0
        if self._policies.store.query():
            self._policies.store.rewind(-1)
        for pool in self._pools.values():
            pool.rounds = []
            for candidate in pool.pinned:
                self._parameters_of(pool, candidate.key)  # what the user has named must be there, and fit
        loop = Loop(self._built.graph)
        groups = {pool.algorithm.learner for pool in self._pools.values()} - {""}
        states = {group: loop.init_state(jnp.uint32(self._seed), group) for group in {*groups, *self._pools}}
        states |= {group: state for group, state in initial.items() if group in states}
        return self._decide(states, dict.fromkeys(states, 0), 0, set(self._pools))

    def change(self, env_steps: int) -> Callable[[Mapping[str, PyTree], Mapping[str, Any]], dict[str, PyTree]]:
        """The decisions that are due: takes the states and versions of all groups, returns those of the pools."""
        before, self._decided_at = self._decided_at, env_steps
        due = {
            group
            for group, pool in self._pools.items()
            if SnapshotSchedule((pool.matchmaker.every,)).mark(before, env_steps) is not None
        }
        return lambda states, versions: self._decide(states, versions, env_steps, due)

    def _decide(
        self, states: Mapping[str, PyTree], versions: Mapping[str, Any], env_steps: int, groups: set[str]
    ) -> dict[str, PyTree]:
        found = {}
        for group in sorted(groups):
            pool = self._pools[group]
            newest = pool.newest(versions, env_steps)
            if newest is not None:
                # A copy: the program gives its own arrays away with the next call.
                self._parameters[newest.key] = jax.tree.map(jnp.copy, states[newest.group].params)
            found[group] = self._filled(pool, newest, states[group], env_steps)
        self._store(states, versions, env_steps, groups)
        playing = {key for pool in self._pools.values() if pool.rounds for key in pool.rounds[-1].places}
        self._parameters = {key: params for key, params in self._parameters.items() if key in playing}
        self._keep()
        return found

    def _store(
        self, states: Mapping[str, PyTree], versions: Mapping[str, Any], env_steps: int, groups: set[str]
    ) -> None:
        """Keeps the learners' newest policies, which may play later."""
        learners = {self._pools[group].algorithm.learner for group in groups} - {""}
        for group in sorted(learners):
            self._policies.pin(group, {*self._pinned(group), int(versions[group])})
        taken = {group: states[group] for group in sorted(learners)}
        self._policies.keep(snapshots.take(taken, {group: int(versions[group]) for group in taken}, env_steps))

    def _filled(self, pool: _Pool, newest: Candidate | None, state: PoolState, env_steps: int) -> PoolState:
        """One pool after its next decision."""
        number, before = len(pool.rounds), pool.playing()
        results = self._results(pool, "learners" if newest is None else newest.key, state) if number else ()
        if number and int(state.round) != number - 1:
            reason = f"{FILE} has {number} decisions for {pool.group}, expected {int(state.round) + 1}: was it edited?"
            self._report_event("results_lost", reason=reason, action="the results since the last one do not count")
            results, before = (), None
        known = [*pool.pinned, *pool.past(), *([] if newest is None else [newest])]
        candidates = list({each.key: each for each in known if each.key not in self._lost}.values())
        matches, candidates = self._matches(pool, candidates, payoffs_of(pool.rounds).add(*results))
        keys = tuple(candidate.key for candidate in candidates)
        made = MatchRound(pool.group, number, env_steps, keys, matches.places, matches.probabilities, results)
        self._log.add(made)
        pool.rounds.append(made)
        # A place that keeps its policy keeps its number, and with it the episodes in progress count.
        numbers = np.asarray(state.params.serials).tolist()
        kept = made.places if not number else ("",) * len(numbers) if before is None else before.places
        pairs = zip(numbers, made.places, kept, strict=True)
        serials = [serial if key == was else max(numbers) + 1 for serial, key, was in pairs]
        policies = [self._parameters[key] for key in made.places]
        return pool.algorithm.filled(policies, made.probabilities, serials, number)

    def _matches(
        self, pool: _Pool, candidates: list[Candidate], payoffs: PayoffTable
    ) -> tuple[Matches, list[Candidate]]:
        """What the matchmaker decides; candidates whose parameters cannot be read are left out."""
        number = len(pool.rounds)
        while True:
            matches = pool.matchmaker.fill(random_numbers(self._seed, number), number, payoffs, candidates)
            pool.matchmaker.check(matches, candidates)
            matches = keep_places(pool.playing(), matches)
            for key in matches.places:
                try:
                    self._parameters_of(pool, key)
                except (UserError, OSError) as problem:
                    reason = f"{key}: {one_line(problem)}"
                    self._report_event("opponent_lost", reason=reason, action="it is not played against any more")
                    self._lost.add(key)
                    candidates = [candidate for candidate in candidates if candidate.key != key]
                    break
            else:
                return matches, candidates

    def _results(self, pool: _Pool, learner: str, state: PoolState) -> tuple[GameResult, ...]:
        """Since the last decision, as the pool's policies see them. All agents of a group count as one player."""
        games = np.asarray(state.results.games, np.float64) / pool.agents
        returns = np.asarray(state.results.returns, np.float64) / pool.agents
        role = "" if pool.algorithm.learner else pool.group
        found = []
        for k, key in enumerate(pool.rounds[-1].places):
            if not games[k].sum():
                continue
            won, drawn, lost = (float(games[k, which]) for which in (WIN, DRAW, LOSS))
            found.append(GameResult(key, learner, won, drawn, lost, float(returns[k]), role))
        return PayoffTable(tuple(found)).results  # a policy may have several places

    def _parameters_of(self, pool: _Pool, key: str) -> PyTree:
        if key not in self._parameters:
            own = OWN.fullmatch(key)
            if own and own[1] in self._built.graph.spec.groups:
                (snapshot,) = self._policies.store.query(own[1], version=int(own[2])) or [None]
                if snapshot is None:
                    raise UserError(f"the policy is not in {self._policies.store.run_dir} any more")
                stored = next(iter(find(snapshot).values()))
            else:
                stored = policy_of(key, pool.algorithm.learner or pool.group)
            self._parameters[key] = fitted_parameters(pool.like, stored)
        return self._parameters[key]

    def _pinned(self, group: str) -> set[int]:
        """Versions of a group that may play, now or after the return to a checkpoint."""
        keys: set[str] = set()
        for pool in self._pools.values():
            for env_steps in {*self._checkpoints, math.inf}:
                until = [made for made in pool.rounds if made.env_steps <= env_steps]
                keys |= {candidate.key for candidate in pool.past(until)}
                keys |= set(until[-1].places if until else ())
        matched = [OWN.fullmatch(key) for key in keys]
        return {int(own[2]) for own in matched if own and own[1] == group}

    def _keep(self) -> None:
        for group in {pool.algorithm.learner for pool in self._pools.values()} - {""}:
            self._policies.pin(group, self._pinned(group))
