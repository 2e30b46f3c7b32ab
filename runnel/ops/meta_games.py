"""Meta-strategies: mixtures of a pool of players, computed from their scores against each other.

A meta-game is a game of two players, who each choose a policy from a pool. Its payoffs are matrices, [N, M]: the row
player's and the column player's. Without `column_payoffs`, the game is zero-sum. Solvers return a probability for each
policy of either player. They are pure functions.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.errors import NotInstalled, UserError, nearest

MOST_PROFILES: Final = 1024
"""The largest number of pairs of policies in alpha-rank, which decomposes a matrix of that size."""


class MetaStrategies(NamedTuple):
    """A probability for each policy of either player."""

    row: np.ndarray  # [N]
    column: np.ndarray  # [M]


def uniform(row_payoffs: np.ndarray, column_payoffs: np.ndarray | None = None) -> MetaStrategies:
    """Every policy with equal probability."""
    row_payoffs, _ = _checked(row_payoffs, column_payoffs)
    rows, columns = row_payoffs.shape
    return MetaStrategies(np.full(rows, 1 / rows), np.full(columns, 1 / columns))


def nash(row_payoffs: np.ndarray, column_payoffs: np.ndarray | None = None) -> MetaStrategies:
    """A Nash equilibrium of a constant-sum game, by linear programming; one of them where there are several."""
    row_payoffs, column_payoffs = _checked(row_payoffs, column_payoffs)
    sums = row_payoffs + column_payoffs
    if not np.allclose(sums, sums[0, 0], atol=1e-6 * max(1.0, float(np.abs(sums).max()))):
        raise UserError(
            f"found payoffs of both players that add up to {sums.min():g} to {sums.max():g}, expected a constant sum; "
            "use the solver 'prd' or 'alpharank', which take any payoffs"
        )
    return MetaStrategies(_maximin(row_payoffs), _maximin(-row_payoffs.T))


def _maximin(payoffs: np.ndarray) -> np.ndarray:
    """[N] the mixture of rows whose least payoff over all columns is greatest."""
    from scipy.optimize import linprog

    rows, columns = payoffs.shape
    spread = float(payoffs.max() - payoffs.min())
    if rows == 1 or spread == 0.0:
        return np.full(rows, 1 / rows)
    scaled = (payoffs - payoffs.min()) / spread  # the tolerances of HiGHS are absolute
    # Variables: a probability for each row, then the value. Maximise the value, which no column may fall below.
    found = linprog(
        c=np.append(np.zeros(rows), -1.0),
        A_ub=np.column_stack([-scaled.T, np.ones(columns)]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None, :],
        b_eq=np.ones(1),
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs",
    )
    if not found.success:
        raise RuntimeError(f"HiGHS found no equilibrium of a {rows}x{columns} game: {found.message}")
    return _normalised(found.x[:rows])


def replicator_dynamics(
    row_payoffs: np.ndarray,
    column_payoffs: np.ndarray | None = None,
    *,
    steps: int = 100_000,
    step_size: float = 1e-3,
    least: float = 1e-6,
) -> MetaStrategies:
    """Projected replicator dynamics (Lanctot et al. 2017), averaged over time; for games of any payoffs.

    Begins with uniform strategies, of which none falls below the probability `least`. The defaults are OpenSpiel's. In
    zero-sum games the average is an approximate equilibrium: what a deviation gains falls with `steps * step_size`, for
    payoffs from -1 to 1.
    """
    row_payoffs, column_payoffs = _checked(row_payoffs, column_payoffs)
    if steps < 1 or not step_size > 0 or not 0 <= least * max(row_payoffs.shape) <= 1:
        raise UserError(
            f"found steps={steps}, step_size={step_size} and least={least}, expected at least one step, a positive "
            f"size and at most 1/{max(row_payoffs.shape)}"
        )
    row, column = uniform(row_payoffs)
    if row_payoffs.size == 1:
        return MetaStrategies(row, column)
    row_sum, column_sum = row.copy(), column.copy()
    column_payoffs = np.ascontiguousarray(column_payoffs.T)  # [M, N]
    for _ in range(steps):
        row_values, column_values = row_payoffs @ column, column_payoffs @ row
        row = _projected(row + step_size * row * (row_values - row @ row_values), least)
        column = _projected(column + step_size * column * (column_values - column @ column_values), least)
        row_sum += row
        column_sum += column
    return MetaStrategies(_normalised(row_sum), _normalised(column_sum))


def _projected(strategy: np.ndarray, least: float) -> np.ndarray:
    """[N] the nearest point (Euclidean) whose probabilities are at least `least`."""
    if strategy.min() >= least:
        return strategy / strategy.sum()  # the sum is off by rounding, which would grow from step to step
    falling = np.sort(strategy)[::-1]
    counts = np.arange(1, len(strategy) + 1)
    shifts = (1.0 - falling.cumsum() - (len(strategy) - counts) * least) / counts
    kept = int(np.flatnonzero(falling + shifts > least)[-1]) if (falling + shifts > least).any() else 0
    return np.maximum(strategy + shifts[kept], least)


def alpha_rank(row_payoffs: np.ndarray, column_payoffs: np.ndarray | None = None) -> MetaStrategies:
    """Alpha-rank (Omidshafiei et al. 2019) in the limit of infinite alpha, by OpenSpiel; for games of any payoffs.

    Symmetric games are ranked as one population, others as two, where it ranks pairs of policies: `MOST_PROFILES` at
    most.
    """
    row_payoffs, column_payoffs = _checked(row_payoffs, column_payoffs)
    alpharank, utils = _alpharank_modules()
    rows, columns = row_payoffs.shape
    if rows == columns and np.allclose(column_payoffs, row_payoffs.T):
        ranked = _normalised(alpharank.sweep_pi_vs_epsilon([row_payoffs]))
        return MetaStrategies(ranked, ranked.copy())
    if rows * columns > MOST_PROFILES:
        raise UserError(
            f"found {rows}x{columns} policies, expected at most {MOST_PROFILES} pairs for 'alpharank'; "
            "use a smaller pool_size or the solver 'prd'"
        )
    joint = alpharank.sweep_pi_vs_epsilon([row_payoffs, column_payoffs])
    profiles = np.zeros((rows, columns))
    for number, probability in enumerate(joint):
        profiles[tuple(utils.get_strat_profile_from_id([rows, columns], number))] = probability
    return MetaStrategies(_normalised(profiles.sum(axis=1)), _normalised(profiles.sum(axis=0)))


def _alpharank_modules() -> tuple[Any, Any]:
    try:
        from open_spiel.python.egt import alpharank, utils
    except ImportError as problem:
        raise _missing(problem.name or "open_spiel") from None
    return alpharank, utils


def _missing(package: str) -> UserError:
    return NotInstalled("the solver 'alpharank'", f"'{package}'", "openspiel")


SOLVERS: Final[dict[str, Callable[..., MetaStrategies]]] = {
    "alpharank": alpha_rank,
    "nash": nash,
    "prd": replicator_dynamics,
    "uniform": uniform,
}
"""Solvers by the name that a matchmaker's settings name."""


def check_solver(solver: str) -> None:
    """Refuses a solver that does not exist, or that needs a package which is not installed."""
    if solver not in SOLVERS:
        raise UserError(f"solver='{solver}': found no such solver{nearest(str(solver), SOLVERS)}")
    for package in ("open_spiel", "networkx") if solver == "alpharank" else ():
        if importlib.util.find_spec(package) is None:
            raise _missing(package)


def solve(solver: str, row_payoffs: np.ndarray, column_payoffs: np.ndarray | None = None) -> MetaStrategies:
    """The meta-strategies of the solver of this name."""
    check_solver(solver)
    return SOLVERS[solver](row_payoffs, column_payoffs)


def _checked(row_payoffs: np.ndarray, column_payoffs: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Payoffs of both players as floats."""
    rows = np.asarray(row_payoffs, np.float64)
    columns = -rows if column_payoffs is None else np.asarray(column_payoffs, np.float64)
    if rows.ndim != 2 or 0 in rows.shape or columns.shape != rows.shape:
        raise UserError(f"found payoffs of shapes {rows.shape} and {columns.shape}, expected two matrices of one shape")
    if not (np.isfinite(rows).all() and np.isfinite(columns).all()):
        raise UserError("found payoffs that are not finite, expected a number for each pair of policies")
    return rows, columns


def _normalised(weights: np.ndarray) -> np.ndarray:
    """Probabilities; solvers return a little less than 0 for some."""
    weights = np.maximum(np.asarray(weights, np.float64), 0.0)
    return weights / weights.sum()
