"""A user's `gymnasium.vector.VectorEnv`, from a callable or as an object. No JAX is imported here.

A vector is stepped as it is, and its environments are not taken out of it. So an episode in progress cannot be
replayed: when a run resumes or a worker is replaced, episodes are truncated and new ones begin.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from runnel.envs import spaces
from runnel.envs.making import (
    COUNT,
    bad_setting,
    draw_without_screen,
    missing_dependency,
    names_parameter,
    takes_keyword,
)
from runnel.envs.recovery import raised
from runnel.envs.user_vector_modes import Apart, Treated, mode_of, resets_rows, treat
from runnel.envs.user_vector_rows import UserVector
from runnel.errors import EnvironmentFailed, UserError, a
from runnel.types import EnvSpec

Maker = Callable[..., VectorEnv]
"""The user's callable, called with settings."""

MakeVector = Callable[[int, bool], VectorEnv]
"""Creates a vector of the given number of environments, with rendering or without."""


class UserVectorEnvironment:
    """A `VectorEnv` as a host environment.

    A callable with a parameter `num_envs` is called for the number of environments of each worker. Other callables, and
    existing vectors, have a number of their own, `fixed_envs`. Where a vector cannot reset some of its environments,
    every environment has a vector to itself: a vector of one, or a whole one of which that environment alone is played.
    """

    def __init__(self, name: str, make: MakeVector, probe: VectorEnv, fixed_envs: int | None, free: bool):
        """`probe` is a vector like those that `make` makes, in any number of environments if it is `free` to do so."""
        self._name, self._make, self.fixed_envs = name, make, fixed_envs
        self._lent: _Lent | None = None
        seen, action = (_space(probe, f"single_{which}_space", name) for which in ("observation", "action"))
        self._observations, self._actions = spaces.observations(seen, name), spaces.actions(action, name)
        self._apart = not resets_rows(probe, name)
        self._takes_seeds = _takes_seeds(probe, name)
        self._size = 1 if free else int(probe.num_envs)  # of each vector, where every environment has its own
        native = spaces.native_format(seen, action, name)
        self.spec = EnvSpec.single(name, self._observations.space, self._actions.space, _time_limit(probe), native)

    @classmethod
    def of_callable(
        cls, name: str, makes: Maker, settings: Mapping[str, Any], probe: VectorEnv
    ) -> UserVectorEnvironment:
        """From a callable and its settings. `probe` is the vector that it returned for them, and is closed here."""
        free = names_parameter(makes, COUNT) and COUNT not in settings and not _is_bound(makes, COUNT)
        number = None if free else int(probe.num_envs)
        try:
            remake = None if free else _remaker(name, probe)
            if remake is not None:
                return cls(name, _making(name, remake, {}, None), probe, number, free=True)
            return cls(name, _making(name, makes, settings, number), probe, number, free)
        finally:
            _close(probe)

    @classmethod
    def of_object(cls, name: str, vector: VectorEnv) -> UserVectorEnvironment:
        """From an existing vector. It stays the user's: one run at a time uses it, and none closes it.

        A vector that cannot reset some environments is not used itself: each environment is played in a copy of it.
        """
        number, remake = int(vector.num_envs), _remaker(name, vector)
        if remake is not None:
            return cls(name, _making(name, remake, {}, None), vector, number, free=True)
        copied = not resets_rows(vector, name)

        def make(count: int, render: bool) -> VectorEnv:
            if render:
                _check_pictures(name, vector)
            return _copy(name, vector) if copied else vector

        probe = _copy(name, vector) if copied else vector
        found = cls(name, make, probe, number, free=False)
        if copied:
            _close(probe)
        else:
            found._lent = _Lent(name)
        return found

    @property
    def one_vector(self) -> bool:
        """Whether a process can have only one vector of it."""
        return self._lent is not None

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> UserVector:
        if render:
            draw_without_screen()
        count, most = len(indices), self.fixed_envs
        if most is not None and count > most:
            raise UserError(
                f"{self._name}: found a vector of {most} environments, expected {count}; give a callable that takes "
                "`num_envs`, or use as many environments as it has"
            )
        if self._lent is not None:
            self._lent.take()

        def build() -> Treated:
            if self._apart:
                vectors = [self._make(self._size, render) for _ in indices]
                return Apart(vectors, [index % self._size for index in indices], self._takes_seeds, self._name)
            return treat(self._make(most or count, render), self._takes_seeds, self._name)

        return UserVector(
            self._name, build, indices, seed, self._observations, self._actions, closes=self._lent is None,
            closed=_nothing if self._lent is None else self._lent.give_back,
        )  # fmt: skip


def _nothing() -> None:
    pass


class _Lent:
    """Whether a vector that the user made is in use."""

    def __init__(self, name: str):
        self._name, self._taken = name, False

    def take(self) -> None:
        if self._taken:
            raise UserError(
                f"{self._name} is one vector, made already and in use: this needs another; give a function that makes "
                "a new one"
            )
        self._taken = True

    def give_back(self) -> None:
        self._taken = False


def _copy(name: str, vector: VectorEnv) -> VectorEnv:
    """Another vector like this one, in its own state."""
    try:
        return copy.deepcopy(vector)
    except Exception as problem:
        raise UserError(
            f"{name}: found autoreset_mode {mode_of(vector, name)}, in which each environment is played in a copy of "
            f"the vector, and {raised('deepcopy', problem).what}; expected SAME_STEP or DISABLED, or a callable that "
            "takes `num_envs`"
        ) from problem


def _making(name: str, makes: Maker, settings: Mapping[str, Any], number: int | None) -> MakeVector:
    """Makes vectors with a callable: of `number` environments, or of as many as are asked for."""

    def make(count: int, render: bool) -> VectorEnv:
        given = {**settings, COUNT: count} if number is None else dict(settings)
        if render and takes_keyword(makes, "render_mode"):
            given["render_mode"] = "rgb_array"
        vector = _made(name, makes, given, count if number is None else number)
        if render:
            _check_pictures(name, vector)
        return vector

    return make


def _made(name: str, makes: Maker, settings: dict[str, Any], count: int) -> VectorEnv:
    try:
        vector = makes(**settings)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as problem:
        raise missing_dependency(name, problem) from problem
    except TypeError as problem:
        raise bad_setting(name, settings, problem, makes) from problem
    if not isinstance(vector, VectorEnv):
        raise UserError(f"{name} returned {a(vector)}; expected a new gymnasium.vector.VectorEnv at each call")
    if vector.num_envs != count:
        _close(vector)
        raise UserError(
            f"{name}: found a vector of {vector.num_envs} environments, expected {count}: let it create `num_envs` "
            "environments, or leave that parameter out"
        )
    return vector


def _check_pictures(name: str, vector: VectorEnv) -> None:
    if vector.render_mode != "rgb_array":
        raise UserError(
            f"{name} cannot be rendered: expected render mode 'rgb_array', found {vector.render_mode!r}. Let the "
            "function that makes it take `render_mode`"
        )


def _space(vector: VectorEnv, which: str, name: str) -> gymnasium.Space:
    space = getattr(vector, which, None)  # VectorEnv declares them, and has none
    if space is None:
        raise UserError(f"{name} has no {which}; set one in `__init__`")
    return space


def _time_limit(vector: VectorEnv) -> int | None:
    """The most steps an episode can have, where `gymnasium.make_vec` has made the vector."""
    spec = vector.spec
    return None if spec is None else spec.kwargs.get("max_episode_steps", spec.max_episode_steps)


def _takes_seeds(vector: VectorEnv, name: str) -> bool:
    """Whether `reset` takes a list with the seed of each environment, as Gymnasium's own vectors do."""
    with contextlib.suppress(Exception):
        vector.reset(seed=[0] * vector.num_envs)  # type: ignore[arg-type]
        return True
    try:
        vector.reset(seed=0)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        fault = raised("reset", problem)
        raise EnvironmentFailed(f"{name}: {fault.what}. Its own traceback:\n{fault.traceback}") from problem
    return False


def _is_bound(makes: Maker, parameter: str) -> bool:
    """Whether a `functools.partial` has given a parameter already."""
    return isinstance(makes, functools.partial) and (parameter in makes.keywords or _is_bound(makes.func, parameter))


def _remaker(name: str, vector: VectorEnv) -> Maker | None:
    """Creates vectors of one environment like those of a vector that cannot reset some environments; None if it can.

    Also None if that is not possible: `gymnasium.make_vec` must have created the vector, without wrappers.
    """
    spec = vector.spec
    made = spec is not None and vector.unwrapped is vector and "vectorization_mode" in spec.kwargs
    if spec is None or not made or resets_rows(vector, name):
        return None
    spec = copy.deepcopy(spec)
    spec.kwargs.pop(COUNT, None)

    def remake(num_envs: int, render_mode: str | None = vector.render_mode) -> VectorEnv:
        return gymnasium.make_vec(spec, num_envs=num_envs, render_mode=render_mode)

    return remake


def _close(vector: VectorEnv) -> None:
    with contextlib.suppress(Exception, SystemExit):  # what it did was good, and is done
        vector.close()
