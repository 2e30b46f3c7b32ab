"""Resets environments of a `gymnasium.vector.VectorEnv` according to its autoreset mode.

Every step of a row must be a step of its environment, and the true last observation of an episode must be available:

| mode | treatment |
|---|---|
| SAME_STEP | the vector resets its environments; last observations are in `info["final_obs"]` |
| DISABLED | ended environments are reset at once, with `options={"reset_mask": ...}` |
| NEXT_STEP | Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv`: as DISABLED. Others: a vector for each environment |

In NEXT_STEP mode a vector uses the step after an episode's end to reset that environment, while its others take an
ordinary step. That step has no action and no reward: it is no step of the environment, and algorithms must not learn
from it. All rows step together, so it cannot be left out of one row. A vector of which one environment alone is played
is reset as a whole, between two steps. No JAX is imported here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorActionWrapper,
    VectorEnv,
    VectorObservationWrapper,
    VectorRewardWrapper,
    VectorWrapper,
)
from gymnasium.wrappers.vector import DictInfoToList, NormalizeObservation, RecordEpisodeStatistics

from runnel.envs.infos import numbers
from runnel.errors import EnvironmentFailed, UserError

LAST: Final = ("final_obs", "final_observation")
"""The keys of `info` with the last observations of ended episodes; the second before Gymnasium 1.1."""

PASS_MASKS: Final = (
    VectorActionWrapper,
    VectorObservationWrapper,
    VectorRewardWrapper,
    DictInfoToList,
    RecordEpisodeStatistics,
)
"""Gymnasium's wrappers around which single environments can be reset; of these, `NormalizeObservation` refuses it."""

Seeds = Callable[[int], int]
"""Maps an environment of the vector to the seed of its next episode."""


class VectorStep(NamedTuple):
    """The result of a step, one value per environment."""

    observation: Sequence[Any]  # what is seen next: a new episode's first where one ended
    reward: np.ndarray  # [n]
    terminated: np.ndarray  # [n] bool
    truncated: np.ndarray  # [n] bool
    last: dict[int, Any]  # by environment whose episode ended: its true last observation
    metrics: dict[int, dict[str, float]]  # by the same: the numbers in its last info


class Treated(Protocol):
    """The vectors of one worker, reset as described above."""

    vectors: Sequence[VectorEnv]

    @property
    def envs(self) -> int:
        """The number of environments that a step has actions for."""
        ...

    def reset(self, seeds: Seeds) -> Sequence[Any]:
        """Begins an episode of every environment."""
        ...

    def step(self, actions: np.ndarray, seeds: Seeds) -> VectorStep: ...

    def restart(self, envs: Sequence[int], seeds: Seeds) -> dict[int, Any]:
        """Begins the next episodes of these environments, or of all; first observations by environment."""
        ...

    def render(self, env: int) -> Any:
        """A picture of one environment; None where there is none."""
        ...


def mode_of(vector: VectorEnv, name: str) -> AutoresetMode:
    """The autoreset mode that a vector declares."""
    found = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(found)
    except ValueError:
        wanted = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
        raise UserError(
            f"{name}: found autoreset_mode {found!r} in its metadata, expected one of {wanted}: say when it resets an "
            "environment whose episode has ended"
        ) from None


def resets_rows(vector: VectorEnv, name: str) -> bool:
    """Whether a vector can reset some environments while others continue, without losing a step."""
    if mode_of(vector, name) is not AutoresetMode.NEXT_STEP:
        return True
    *around, inner = _layers(vector)
    # Without shared memory, AsyncVectorEnv resets an environment twice that was reset by a mask.
    known = type(inner) is SyncVectorEnv or (type(inner) is AsyncVectorEnv and inner.shared_memory)
    return known and all(map(_passes_masks, around))


def _passes_masks(wrapper: VectorEnv) -> bool:
    written_by_gymnasium = type(wrapper).__module__.startswith("gymnasium.")
    return written_by_gymnasium and isinstance(wrapper, PASS_MASKS) and type(wrapper) is not NormalizeObservation


def _layers(vector: VectorEnv) -> Iterator[VectorEnv]:
    while isinstance(vector, VectorWrapper):
        yield vector
        vector = vector.env
    yield vector


def treat(vector: VectorEnv, takes_seeds: bool, name: str) -> Treated:
    """A vector that `resets_rows`. `takes_seeds`: its `reset` takes a seed for each environment."""
    kind = SameStep if mode_of(vector, name) is AutoresetMode.SAME_STEP else Masked
    return kind(vector, takes_seeds, name)


class SameStep:
    """A vector that resets environments in the step in which their episodes end."""

    def __init__(self, vector: VectorEnv, takes_seeds: bool, name: str):
        self.vectors: Sequence[VectorEnv] = (vector,)
        self._vector = vector
        self._takes_seeds, self._name = takes_seeds, name

    @property
    def envs(self) -> int:
        return self._vector.num_envs

    def reset(self, seeds: Seeds) -> Sequence[Any]:
        observation, _ = self._vector.reset(seed=self._seed(seeds))
        return each(observation, self._vector.num_envs)

    def step(self, actions: np.ndarray, seeds: Seeds) -> VectorStep:
        observation, reward, terminated, truncated, info = self._vector.step(actions)
        flags = _flags(terminated, truncated, self._vector.num_envs)
        ended = np.flatnonzero(flags[0] | flags[1]).tolist()
        last = {env: self._last(info, env) for env in ended}
        metrics = {env: _metrics(info_of(info, env).get("final_info")) for env in ended}
        return VectorStep(each(observation, self._vector.num_envs), np.asarray(reward), *flags, last, metrics)

    def restart(self, envs: Sequence[int], seeds: Seeds) -> dict[int, Any]:
        return dict(enumerate(self.reset(seeds)))

    def render(self, env: int) -> Any:
        pictures: Any = self._vector.render()
        return None if pictures is None else pictures[env]

    def _seed(self, seeds: Seeds) -> Any:
        count = self._vector.num_envs
        return [seeds(env) for env in range(count)] if self._takes_seeds else seeds(0)

    def _last(self, info: Any, env: int) -> Any:
        own = info_of(info, env)
        for key in LAST:
            whole = info.get(key) if isinstance(info, Mapping) else None
            batched = isinstance(whole, Mapping | tuple)
            found = each(whole, self._vector.num_envs)[env] if batched else own.get(key)
            if found is not None:
                return found
        raise EnvironmentFailed(
            f"{self._name}: an episode of environment {env} ended, and info has no final observation; a vector with "
            "autoreset_mode SAME_STEP must set info['final_obs']"
        )


class Masked(SameStep):
    """A vector that can reset single environments."""

    def step(self, actions: np.ndarray, seeds: Seeds) -> VectorStep:
        observation, reward, terminated, truncated, info = self._vector.step(actions)
        flags = _flags(terminated, truncated, self._vector.num_envs)
        seen, reward = each(observation, self._vector.num_envs), np.array(reward)
        ended = np.flatnonzero(flags[0] | flags[1]).tolist()
        if not ended:
            return VectorStep(seen, reward, *flags, {}, {})
        metrics = {env: _metrics(info_of(info, env)) for env in ended}
        seen = copy.deepcopy(list(seen))  # a reset may write where the step has written
        last = {env: seen[env] for env in ended}
        for env, first in self.restart(ended, seeds).items():
            seen[env] = first
        return VectorStep(seen, reward, *flags, last, metrics)

    def restart(self, envs: Sequence[int], seeds: Seeds) -> dict[int, Any]:
        mask = np.zeros(self._vector.num_envs, np.bool_)
        mask[list(envs)] = True
        seed = self._seed(seeds) if self._takes_seeds else None  # one seed would be for all of them
        observation, _ = self._vector.reset(seed=seed, options={"reset_mask": mask})
        first = each(observation, self._vector.num_envs)
        return {env: first[env] for env in envs}


class Apart:
    """Vectors of which one environment each is played. Their other environments step with it, and are not looked at."""

    def __init__(self, vectors: Sequence[VectorEnv], places: Sequence[int], takes_seeds: bool, name: str):
        """`places`: which environment of each vector is played."""
        self.vectors, self._places = vectors, places
        self._rows = [SameStep(vector, takes_seeds, name) for vector in vectors]

    @property
    def envs(self) -> int:
        return len(self.vectors)

    def reset(self, seeds: Seeds) -> Sequence[Any]:
        return list(self.restart(range(len(self.vectors)), seeds).values())

    def step(self, actions: np.ndarray, seeds: Seeds) -> VectorStep:
        steps = [self._step(env, actions[env : env + 1]) for env in range(len(self.vectors))]
        seen = [step.observation for step in steps]
        reward, terminated, truncated = (np.array(part) for part in list(zip(*steps, strict=True))[1:4])
        ended = np.flatnonzero(terminated | truncated).tolist()
        metrics = {env: _metrics(steps[env].info) for env in ended}
        last = {env: copy.deepcopy(seen[env]) for env in ended}
        for env, first in self.restart(ended, seeds).items():
            seen[env] = first
        return VectorStep(seen, reward, terminated, truncated, last, metrics)

    def restart(self, envs: Sequence[int], seeds: Seeds) -> dict[int, Any]:
        return {env: self._rows[env].reset(lambda _, env=env: seeds(env))[self._places[env]] for env in envs}

    def render(self, env: int) -> Any:
        return self._rows[env].render(self._places[env])

    def _step(self, env: int, action: np.ndarray) -> _Played:
        vector, place = self.vectors[env], self._places[env]
        count = vector.num_envs
        observation, reward, terminated, truncated, info = vector.step(action.repeat(count, axis=0))
        flags = _flags(terminated, truncated, count)
        return _Played(
            each(observation, count)[place], np.asarray(reward)[place], flags[0][place], flags[1][place],
            info_of(info, place),
        )  # fmt: skip


class _Played(NamedTuple):
    """A step of the environment that is played."""

    observation: Any
    reward: np.generic
    terminated: np.bool_
    truncated: np.bool_
    info: dict[str, Any]


def each(observation: Any, count: int) -> Sequence[Any]:
    """One observation an environment, from a tree of arrays with a row for each."""
    if isinstance(observation, Mapping):
        parts = {key: each(part, count) for key, part in observation.items()}
        return [{key: part[env] for key, part in parts.items()} for env in range(count)]
    if isinstance(observation, tuple):
        parts = [each(part, count) for part in observation]
        return [tuple(part[env] for part in parts) for env in range(count)]
    rows = np.asarray(observation)
    if rows.ndim < 1 or len(rows) != count:
        raise ValueError(f"an array of shape {rows.shape} among its observations, expected {count} rows")
    return rows  # type: ignore[return-value]


def _flags(terminated: Any, truncated: Any, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Which episodes terminated and which were truncated. An episode with both flags has terminated: it has no value to
    bootstrap from."""
    ends, cuts = (np.array(flags, np.bool_) for flags in (terminated, truncated))
    if ends.shape != (count,) or cuts.shape != (count,):
        raise ValueError(f"terminated and truncated of shapes {ends.shape} and {cuts.shape}, expected {count} each")
    return ends, cuts & ~ends


def info_of(info: Any, env: int) -> dict[str, Any]:
    """The info of one environment, from a vector's arrays with masks (`_name` for `name`) or a list of dicts.

    Anything else is ignored: infos never end a run.
    """
    try:
        return _info_of(info, env) if isinstance(info, Mapping) else dict(info[env])
    except Exception:
        return {}


def _info_of(info: Mapping[str, Any], env: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in info.items():
        there = info.get(f"_{key}")
        if (key[:1] == "_" and key[1:] in info) or (there is not None and not there[env]):
            continue
        if isinstance(value, Mapping):
            found[key] = _info_of(value, env)
        elif isinstance(value, np.ndarray | list | tuple) and len(value) > env:
            found[key] = value[env]
    return found


def _metrics(info: Any) -> dict[str, float]:
    """The numbers in the info of one environment, without its last observation."""
    return {name: value for name, value in numbers(info).items() if name not in LAST}
