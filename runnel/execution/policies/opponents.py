"""Fills the opponent pools of a run: past policies of its own learners, and stored ones of other runs.

At every decision of a matchmaker, the results since the last one are added to the payoffs, the learner's newest policy
becomes a candidate, and the places of the pool receive the policies that the matchmaker names. Decisions depend on the
seed, on their number and on the results so far, so a run that resumes from a checkpoint makes the same decisions. It
is one file because a decision reads and changes all that a pool holds.
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

from runnel.algorithm import first_state
from runnel.algorithms.opponent_pool import DRAW, LOSS, WIN, OpponentPool, PoolState
from runnel.envs import seats
from runnel.errors import RunFailed, StateLost, UserError, WorkerFailed
from runnel.execution.building import BuiltRun
from runnel.execution.policies.group_algorithms import policy_of
from runnel.execution.policies.pool_games import PoolGames
from runnel.execution.policies.stored_policies import StoredPolicy, find
from runnel.execution.policies.warm_start import fitted_parameters, with_parameters
from runnel.execution.snapshots.policy_recorder import PolicyRecorder
from runnel.graph.nodes import Graph
from runnel.matchmaking import Candidate, Matches, Matchmaker, keep_places
from runnel.payoffs import GameResult, PayoffTable
from runnel.population import random_numbers
from runnel.recording.events import ReportEvent
from runnel.recording.files import one_line
from runnel.recording.match_log import FILE, MatchLog, MatchRound, payoffs_of, read_matches
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.carry import StateChange
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.types import PyTree

KEPT: Final = 3
"""The number of checkpoints that are kept, with the policies of their pools."""

OWN: Final = re.compile(r"(.+):([0-9]{1,18})")
"""The key of a policy of this run: its group and version."""


def pools_in(graph: Graph) -> dict[str, OpponentPool]:
    """By group: the pools of a run."""
    algorithms = {group: graph.algorithm.for_group(group) for group in graph.spec.groups}
    return {group: each for group, each in algorithms.items() if isinstance(each, OpponentPool)}


@dataclass
class _Pool:
    """One group for which stored policies act."""

    group: str
    number: int  # among the pools of the run
    algorithm: OpponentPool
    agents: int
    pinned: tuple[Candidate, ...]  # stored policies of other runs
    like: PyTree  # shapes of the state of a policy that can play here
    games: PoolGames
    rounds: list[MatchRound] = field(default_factory=list)
    _past: list[dict[str, tuple[Candidate, ...]]] = field(default_factory=list)  # after each decision

    @property
    def matchmaker(self) -> Matchmaker:
        return self.algorithm.matchmaker

    @property
    def players(self) -> tuple[str, ...]:
        """The groups whose policies play here."""
        own = (self.algorithm.learner,) if self.algorithm.learner else ()
        return self.algorithm.players or own

    @property
    def followed(self) -> tuple[str, ...]:
        """The groups whose policies are candidates, the learner last: its own are included for their results, at
        least."""
        learner = self.algorithm.learner
        others = tuple(group for group in self.players if group != learner)
        return (*others, learner) if learner else others

    def begin_with(self, rounds: Sequence[MatchRound]) -> None:
        """Replaces the recorded decisions by these."""
        self.rounds, self._past = list(rounds), []

    def past(self, rounds: int | None = None) -> dict[str, tuple[Candidate, ...]]:
        """By group: the run's own policies that are candidates after `rounds` decisions, or after all so far."""
        count = len(self.rounds) if rounds is None else rounds
        for made in self.rounds[len(self._past) : count]:
            before = self._past[-1] if self._past else dict[str, tuple[Candidate, ...]]()
            newest: dict[str, int] = {}
            for own in filter(None, map(OWN.fullmatch, made.pool)):
                newest[own[1]] = max(int(own[2]), newest.get(own[1], 0))
            grown = {
                group: self.matchmaker.grow(
                    before.get(group, ()), Candidate(f"{group}:{version}", version, made.env_steps, group), made.round
                )
                for group, version in newest.items()
                if group in self.followed
            }
            self._past.append({**before, **grown})
        return self._past[count - 1] if count else {}

    def newest(self, versions: Mapping[str, Any], env_steps: int) -> dict[str, Candidate]:
        """The current policies of the groups that learn."""
        numbers = {group: int(versions[group]) for group in self.followed}
        return {group: Candidate(f"{group}:{n}", n, env_steps, group) for group, n in numbers.items()}

    def candidates(self, newest: Mapping[str, Candidate]) -> list[Candidate]:
        """All candidates of a decision, the learner's newest policy last."""
        past = self.past()
        known = [*self.pinned, *(each for group in self.followed for each in (*past.get(group, ()), newest[group]))]
        return list({each.key: each for each in known}.values())

    def began(self) -> int:
        """The number of decisions since the learner began or was reset."""
        return next((k for k, made in enumerate(reversed(self.rounds), 1) if made.began), len(self.rounds))

    def playing(self) -> Matches | None:
        return Matches(self.rounds[-1].places, self.rounds[-1].probabilities) if self.rounds else None


class Opponents:
    """The opponent pools of one run.

    It is one class because a decision reads and changes all it holds: the results so far, the stored policies that are
    kept for them, and the places in the program's state; going back to a checkpoint takes back all three.
    """

    def __init__(self, run_dir: Path, built: BuiltRun, seed: int, policies: PolicyRecorder, report_event: ReportEvent):
        self._built, self._seed, self._policies, self._report_event = built, seed, policies, report_event
        self._log = MatchLog(run_dir)
        self._pools = {group: self._made(group, pool) for group, pool in pools_in(built.graph).items()}
        self._schedule = SnapshotSchedule(tuple(pool.matchmaker.every for pool in self._pools.values()))
        self._decided_at = 0
        self._beat: Callable[[], None] = lambda: None
        self._parameters: dict[str, PyTree] = {}  # of those that play
        self._lost: set[str] = set()  # whose parameters could not be read
        self._checkpoints: deque[int] = deque([0], KEPT)  # environment steps of those that a run may return to
        self.read()

    def _made(self, group: str, algorithm: OpponentPool) -> _Pool:
        keys: Sequence[str] = getattr(algorithm.matchmaker, "keys", ())
        player = algorithm.player(group)
        pinned = tuple(Candidate(key, group=player, pinned=True) for key in keys if not OWN.fullmatch(key))
        spec = self._built.graph.spec.groups[group]
        like = jax.eval_shape(lambda key: first_state(algorithm.policy, key, spec, player), jax.random.key(0))
        number = list(pools_in(self._built.graph)).index(group)
        games = PoolGames(self._built, group, algorithm, self._seed)
        return _Pool(group, number, algorithm, spec.agents, pinned, like, games)

    def __bool__(self) -> bool:
        return bool(self._pools)

    # When

    def next_mark(self, env_steps: int) -> int | None:
        """The environment step of the next decision; until then the same policies play."""
        return self._schedule.next_mark(env_steps)

    def due(self, env_steps: int) -> bool:
        return self._schedule.mark(self._decided_at, env_steps) is not None

    def read(self) -> None:
        """Resumes from the decisions in the run directory."""
        rounds = read_matches(self._log.run_dir) if self._pools else []
        for group, pool in self._pools.items():
            own = [made for made in rounds if made.group == group]
            pool.begin_with([made for made in own if made.pool and len(made.places) == pool.algorithm.places])
        self._decided_at = max((made.env_steps for made in rounds), default=0)
        self._keep()

    def rewind(self, env_steps: int, states: Mapping[str, PyTree]) -> None:
        """Training returns to an earlier point with these states: later decisions will be repeated.

        Decisions of that very step are repeated too if the states precede them: workers may save them on their way to
        the step.
        """
        if self._pools:
            self._log.rewind(max(0, env_steps))
            self._parameters = {}  # a version that is trained again may become another policy
            self._checkpoints.append(max(0, env_steps))
            self.read()
            pools = {group: pool for group, pool in self._pools.items() if group in states}
            if any(len(pool.rounds) - 1 > int(states[group].round) for group, pool in pools.items()):
                self._log.rewind(env_steps - 1)
                self.read()

    def saved(self, env_steps: int) -> None:
        """Records a checkpoint, to which the run may return with its policies."""
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
            pool.begin_with(())
            for candidate in pool.pinned:
                self._parameters_of(pool, candidate.key)  # what the user has named must be there, and fit
        loop = Loop(self._built.graph)
        groups = {group for pool in self._pools.values() for group in pool.followed}
        states = {group: loop.init_state(jnp.uint32(self._seed), group) for group in {*groups, *self._pools}}
        states |= {group: state for group, state in initial.items() if group in states}
        return self._decide(states, dict.fromkeys(states, 0), 0, set(self._pools))

    def change(self, env_steps: int, beat: Callable[[], None] = lambda: None) -> StateChange:
        """Makes the decisions that are due: takes the states and versions of all groups, returns the states that
        change. `beat` is called now and then while games are played."""
        before, self._decided_at = self._decided_at, env_steps
        due = {
            group
            for group, pool in self._pools.items()
            if SnapshotSchedule((pool.matchmaker.every,)).mark(before, env_steps) is not None
        }
        self._beat = beat
        return lambda states, versions: self._decide(states, versions, env_steps, due)

    def _decide(
        self, states: Mapping[str, PyTree], versions: Mapping[str, Any], env_steps: int, groups: set[str]
    ) -> dict[str, PyTree]:
        results = {group: self._results(self._pools[group], states, versions, env_steps) for group in sorted(groups)}
        rounds = [made for pool in self._pools.values() for made in pool.rounds]
        payoffs = payoffs_of(rounds).add(*(result for found in results.values() for result in found))
        changed = {}
        for group in sorted(groups):
            pool = self._pools[group]
            newest = pool.newest(versions, env_steps)
            for player in pool.players:
                # A copy: the program gives its own arrays away with the next call.
                self._parameters[newest[player].key] = jax.tree.map(jnp.copy, states[player].params)
            made = self._decision(pool, newest, env_steps, payoffs, results[group])
            changed[group] = self._filled(pool, made, states[group])
        self._store(states, versions, env_steps, groups)
        for group in groups:
            pool = self._pools[group]
            if pool.rounds[-1].began:
                changed[pool.algorithm.learner] = self._first_state(pool)
        playing = {key for pool in self._pools.values() if pool.rounds for key in pool.rounds[-1].places}
        self._parameters = {key: params for key, params in self._parameters.items() if key in playing}
        self._keep()
        return changed

    def _store(
        self, states: Mapping[str, PyTree], versions: Mapping[str, Any], env_steps: int, groups: set[str]
    ) -> None:
        """Stores the learners' newest policies, which may play later."""
        learners = {learner for group in groups for learner in self._pools[group].followed}
        for group in sorted(learners):
            self._policies.pin(group, {*self._pinned(group), int(versions[group])})
        taken = {group: states[group] for group in sorted(learners)}
        self._policies.keep(snapshots.take(taken, {group: int(versions[group]) for group in taken}, env_steps))

    def _decision(
        self, pool: _Pool, newest: Mapping[str, Candidate], env_steps: int, payoffs: PayoffTable,
        results: tuple[GameResult, ...],
    ) -> MatchRound:  # fmt: skip
        """The matchmaker's decision for one pool."""
        number = len(pool.rounds)
        candidates = [each for each in pool.candidates(newest) if each.key not in self._lost]
        matches, candidates = self._matches(pool, candidates, payoffs)
        began = bool(number and newest and pool.matchmaker.starts_over(pool.began(), payoffs, candidates))
        keys = tuple(candidate.key for candidate in candidates)
        return MatchRound(pool.group, number, env_steps, keys, matches.places, matches.probabilities, results, began)

    def _filled(self, pool: _Pool, made: MatchRound, state: PoolState) -> PoolState:
        """Records a decision for one pool, and returns the pool's new state."""
        before = pool.playing() if self._in_step(pool, state) else None
        self._log.add(made)
        pool.rounds.append(made)
        # A place that keeps its policy keeps its number, and with it the episodes in progress count.
        numbers = np.asarray(state.params.serials).tolist()
        kept = made.places if not made.round else ("",) * len(numbers) if before is None else before.places
        pairs = zip(numbers, made.places, kept, strict=True)
        serials = [serial if key == was else max(numbers) + 1 for serial, key, was in pairs]
        policies = [self._parameters[key] for key in made.places]
        return pool.algorithm.filled(policies, made.probabilities, serials, made.round)

    def _in_step(self, pool: _Pool, state: PoolState) -> bool:
        """Whether the state of a pool is that of its newest decision."""
        return bool(pool.rounds) and int(state.round) == len(pool.rounds) - 1

    def _first_state(self, pool: _Pool) -> PyTree:
        """The state with which a learner began the run: its first parameters, and nothing learnt."""
        group = pool.algorithm.learner
        fresh = Loop(self._built.graph).init_state(jnp.uint32(self._seed), group)
        (snapshot,) = self._policies.store.query(group, version=0) or [None]
        return fresh if snapshot is None else with_parameters(fresh, snapshot.arrays())

    def _matches(
        self, pool: _Pool, candidates: list[Candidate], payoffs: PayoffTable
    ) -> tuple[Matches, list[Candidate]]:
        """The matchmaker's choice of places, without candidates whose parameters cannot be read."""
        number = len(pool.rounds)
        while True:
            rng = random_numbers(self._seed, number, *([pool.number] if pool.number else []))
            matches = pool.matchmaker.fill(rng, number, payoffs, candidates)
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

    def _since_last(self, pool: _Pool, state: PoolState, versions: Mapping[str, Any]) -> tuple[GameResult, ...]:
        """Results since the last decision, from the side of the pool's policies. All agents of a group are one
        player."""
        number, group = len(pool.rounds), pool.algorithm.learner
        if not number:
            return ()
        if not self._in_step(pool, state):
            reason = f"{FILE} has {number} decisions for {pool.group}, expected {int(state.round) + 1}: was it edited?"
            self._report_event("results_lost", reason=reason, action="the results since the last one do not count")
            return ()
        learner = f"{group}:{int(versions[group])}" if group else "learners"
        games = np.asarray(state.results.games, np.float64) / pool.agents
        returns = np.asarray(state.results.returns, np.float64) / pool.agents
        role = pool.algorithm.role or ("" if group else pool.group)
        found = []
        for k, key in enumerate(pool.rounds[-1].places):
            if not games[k].sum():
                continue
            won, drawn, lost = (float(games[k, which]) for which in (WIN, DRAW, LOSS))
            found.append(GameResult(key, learner, won, drawn, lost, float(returns[k]), role))
        return PayoffTable(tuple(found)).results  # a policy may have several places

    def _results(
        self, pool: _Pool, states: Mapping[str, PyTree], versions: Mapping[str, Any], env_steps: int
    ) -> tuple[GameResult, ...]:
        """Those of training, or of games between the learner's newest policy and all others, which have met before."""
        if not pool.games.played:
            return self._since_last(pool, states[pool.group], versions)
        (*others, latest) = pool.candidates(pool.newest(versions, env_steps))
        own, found = states[pool.algorithm.learner].params, []
        for each in others:
            if each.key in self._lost:
                continue
            try:
                parameters = self._parameters_of(pool, each.key)
            except (UserError, OSError):  # one that plays next is reported there
                continue
            found.append(self._played(pool, each.key, parameters, latest.key, own))
        return PayoffTable(tuple(result for result in found if result is not None)).results

    def _played(self, pool: _Pool, key: str, own: PyTree, opponent: str, other: PyTree) -> GameResult | None:
        """The result of two policies; None if their games fail, as evaluations may."""
        try:
            return pool.games.play(key, own, opponent, other, self._beat)
        except (StateLost, RunFailed, WorkerFailed):  # of the run, or the user's
            raise
        except (Exception, SystemExit) as problem:  # an environment does not decide how a run ends
            pool.games.forget()
            reason = f"games of {key} and {opponent} failed: {type(problem).__name__}: {one_line(problem)}"
            self._report_event("results_lost", reason=reason, action="they do not count")
            return None

    def close(self) -> None:
        """Closes the environments of games beside training."""
        for pool in self._pools.values():
            pool.games.close()

    def _parameters_of(self, pool: _Pool, key: str) -> PyTree:
        if key not in self._parameters:
            own = OWN.fullmatch(key)
            if own and own[1] in self._built.graph.spec.groups:
                (snapshot,) = self._policies.store.query(own[1], version=int(own[2])) or [None]
                if snapshot is None:
                    raise UserError(f"the policy is not in {self._policies.store.run_dir} any more")
                stored = next(iter(find(snapshot).values()))
            else:
                stored = policy_of(key, (*pool.players, pool.group)[0])
            self._parameters[key] = self._fitted(pool, key, stored)
        return self._parameters[key]

    def _fitted(self, pool: _Pool, key: str, stored: StoredPolicy) -> PyTree:
        try:
            return fitted_parameters(pool.like, stored)
        except UserError as misfit:
            if not pool.algorithm.learner:
                raise
            role = pool.algorithm.role
            seats_too = "" if role else f", with env.{seats.SETTING}=1"
            raise UserError(
                f"{misfit}. All policies of a pool have one architecture; another one plays as a group of its own: "
                f"{role or seats.OPPONENT}={key} in the place of an algorithm{seats_too}"
            ) from None

    def _pinned(self, group: str) -> set[int]:
        """Versions of a group that may play, now or after the return to a checkpoint."""
        keys: set[str] = set()
        for pool in self._pools.values():
            for env_steps in {*self._checkpoints, math.inf}:
                until = sum(made.env_steps <= env_steps for made in pool.rounds)
                keys |= {candidate.key for own in pool.past(until).values() for candidate in own}
                keys |= set(pool.rounds[until - 1].places if until else ())
        matched = [OWN.fullmatch(key) for key in keys]
        leagues = [pool.algorithm.learner for pool in self._pools.values() if pool.matchmaker.groups]
        first = {0} if group in leagues else set[int]()  # with which a learner may begin again
        return {int(own[2]) for own in matched if own and own[1] == group} | first

    def _keep(self) -> None:
        for group in {group for pool in self._pools.values() for group in pool.followed}:
            self._policies.pin(group, self._pinned(group))
