"""Games between two policies of a pool, played beside training: results of policies that do not change meanwhile."""

from __future__ import annotations

import jax
import numpy as np

from runnel.algorithms.opponent_pool import OpponentPool
from runnel.execution.building import BuiltRun, fixed_envs
from runnel.payoffs import GameResult
from runnel.population import random_numbers
from runnel.runtime.single_process.evaluation import Evaluator, make_evaluator, quotas
from runnel.types import PyTree

STREAM = 1
"""Of the run's random numbers: those of these games."""


class PoolGames:
    """Plays the same number of games between any two policies, which act as in training."""

    def __init__(self, built: BuiltRun, group: str, pool: OpponentPool, seed: int):
        self._built, self._group, self._pool = built, group, pool
        self._seed = int(random_numbers(seed, 0, STREAM).integers(2**31))
        self._evaluator: Evaluator | None = None  # made for the first game; it is compiled once

    @property
    def played(self) -> bool:
        """Whether games are played: in symmetric games with one learner, unless the matchmaker wants none."""
        two = set(self._built.graph.spec.groups) == {self._group, self._pool.learner}
        return bool(self._pool.matchmaker.games and two and not self._pool.role)

    def play(self, player: str, own: PyTree, opponent: str, other: PyTree) -> GameResult:
        """Plays `player` with the parameters `own`, on the pool's seats, against `opponent` on the learner's."""
        if self._evaluator is None:
            most = fixed_envs(self._built.environment)
            quota = dict(enumerate(quotas(self._pool.matchmaker.games, most)))
            graph, environment = self._built.graph, self._built.environment
            self._evaluator = make_evaluator(graph, environment, self._seed, quota, explore=True)
        places = self._pool.places
        state = self._pool.filled([own] * places, [1.0] * places, [0] * places)
        params = jax.device_put({self._group: state.params, self._pool.learner: other})
        returns = self._evaluator.play(params).returns[self._group]
        returns = returns[np.isfinite(returns)]
        won, lost = float((returns > 0).sum()), float((returns < 0).sum())
        return GameResult(player, opponent, won, len(returns) - won - lost, lost, float(returns.sum()))

    def close(self) -> None:
        if self._evaluator is not None:
            self._evaluator.close()
