"""Driving host environments in tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from runnel.environment import Episode, HostEnvironment, HostStep
from runnel.types import Box, Discrete, EnvSpec, MultiDiscrete, space_map, zeros


def empty(spec: EnvSpec, envs: int) -> HostStep:
    """Arrays full of what no environment writes, so that a row nobody wrote is seen."""

    def poisoned(leaf: Any, rows: int) -> np.ndarray:
        kind = np.dtype(leaf.dtype).kind
        poison = {"f": np.nan, "b": True}.get(kind, 99 if kind in "iu" else 0)
        return np.full((rows, *leaf.shape), poison, leaf.dtype)

    def observations() -> dict[str, Any]:
        return {
            group: space_map(lambda leaf, rows=envs * agents.agents: poisoned(leaf, rows), agents.observation)
            for group, agents in spec.groups.items()
        }

    reward = {group: np.full(envs * agents.agents, np.nan, np.float32) for group, agents in spec.groups.items()}
    return HostStep(observations(), reward, np.ones(envs, bool), np.ones(envs, bool), observations())


def random_actions(spec: EnvSpec, envs: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    def one(leaf: Any, rows: int) -> np.ndarray:
        match leaf:
            case Discrete():
                return rng.integers(0, leaf.n, rows).astype(np.int32)
            case MultiDiscrete():
                return rng.integers(0, leaf.sizes, (rows, len(leaf.sizes))).astype(np.int32)
            case Box():
                return rng.normal(size=(rows, *leaf.shape)).astype(np.float32)
        raise AssertionError(leaf)

    return {group: one(agents.action, envs * agents.agents) for group, agents in spec.groups.items()}


class Played(NamedTuple):
    """Copies of all that happened."""

    first: Any  # the observations after `reset` or `restore`
    steps: list[HostStep]
    episodes: list[Episode]  # in progress at the end, one an environment


def play(
    environment: HostEnvironment,
    steps: int,
    *,
    indices: range | list[int] = range(4),
    seed: int = 7,
    restore: list[Episode] | None = None,
    actions_seed: int = 0,
    **restore_arguments: Any,
) -> Played:
    """Plays with random actions that depend on the environment's index and nothing else."""
    spec, envs = environment.spec, len(indices)
    vector = environment.open(indices, seed)
    out = empty(spec, envs)
    if restore is None:
        vector.reset(out.observation)
        lengths = [0] * envs
        history: list[list[dict[str, np.ndarray]]] = [[] for _ in indices]
    else:
        vector.restore(restore, out.observation, **restore_arguments)
        lengths = [len(next(iter(episode.actions.values()))) for episode in restore]
        history = [
            [{group: rows[t] for group, rows in episode.actions.items()} for t in range(length)]
            for episode, length in zip(restore, lengths, strict=True)
        ]
    rngs = [np.random.default_rng((actions_seed, index)) for index in indices]
    first = jax.tree.map(np.copy, out.observation)
    seen = []
    for _ in range(steps):
        each = [random_actions(spec, 1, rng) for rng in rngs]
        action = {group: np.concatenate([one[group] for one in each]) for group in spec.groups}
        vector.step(action, out)
        seen.append(jax.tree.map(np.copy, out))
        for row, one in enumerate(each):
            ended = out.terminated[row] or out.truncated[row]
            mine = {group: rows if spec.groups[group].agents > 1 else rows[0] for group, rows in one.items()}
            history[row] = [] if ended else [*history[row], mine]
    numbers = vector.episode_numbers()
    vector.close()
    return Played(first, seen, [_episode(spec, int(n), h) for n, h in zip(numbers, history, strict=True)])


def _episode(spec: EnvSpec, number: int, history: list[dict[str, np.ndarray]]) -> Episode:
    actions = {}
    for group, agents in spec.groups.items():
        none = zeros(agents.action, 0, *([agents.agents] if agents.agents > 1 else []))
        actions[group] = np.stack([one[group] for one in history]) if history else none
    return Episode(number, actions)


def same(a: Any, b: Any) -> bool:
    """Whether two trees of arrays are equal bit for bit, NaNs and types too."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)
