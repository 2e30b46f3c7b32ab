"""JaxMARL's environments of several agents (0.2), as single environments that only the runtime resets.

A name is one of JaxMARL's own (`MPE_simple_spread_v3`, `hanabi`), or a map of SMAX (`3m`, `2s3z`): that battle against
SMAX's own enemy.

The reason for an episode's end is decided here, because JaxMARL returns `done` without one. Its limits hold to the
step: MPE and SMAX themselves take one step more.

| environments | limit | the end at the limit is | ends before it |
|---|---|---|---|
| MPE | 25 | truncation: it is around the task, and not seen | never |
| SMAX | 100 | truncation: as MPE | a battle won, lost or drawn is a termination |
| overcooked, overcooked_v2 | 400 | truncation: a kitchen has no last dish | never |
| hanabi | none | | termination: the deck or the lives are used up, or all is played |
| switch_riddle | 4 n - 6 | truncation: not seen | announcing is a termination |
| coin_game | 10 games of 10 | truncation: the next game would be as good | never |
| jaxnav | 500 | truncation | all have arrived or collided: termination |
| ant_4x2 and others of MABrax | 1000 | truncation: as in Brax | termination: it fell |

Agents without a choice are not `active`: dead agents of SMAX, waiting agents of Hanabi, agents of jaxnav that have
arrived. SMAX and Hanabi have legal actions, which become `action_mask`.

The return of SMAX is 1 for all damage done, plus 1 for a won battle: 2 where it was won, at most 1 where it was not.
`env/is_success` is the share of battles that were won. With `shaping`, the reported return excludes the shaping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.envs.jaxmarl_catalog import make, quiet, take_limit
from runnel.errors import UserError
from runnel.observations import parted, view
from runnel.ops.state_dtypes import StateTypes
from runnel.types import DEFAULT_GROUP, AgentSpec, Array, Box, Discrete, EnvSpec, PyTree, Space

Grouping = Literal["kind", "each", "one"]


class State(NamedTuple):
    """An episode in progress."""

    inner: PyTree  # JaxMARL's own
    time: Array  # [] steps taken
    score: PyTree = ()  # by agent: [] its rewards so far without shaping, where there is shaping


class JaxMarlEnvironment:
    """One JaxMARL environment as pure functions: `JaxMarlEnvironment("3m", state=True)`."""

    def __init__(
        self, name: str, /, *, groups: Grouping = "kind", state: bool = False, shaping: float = 0.0, **settings: Any
    ):
        """Creates the environment of that name with JaxMARL's own `settings`.

        Agents with equal spaces and the same name before their number form a group (`groups="kind"`); or each agent is
        a group (`"each"`), or all are one (`"one"`). In one group, agents that differ are treated as in JaxMARL's own
        trainers: observations are padded with zeros and followed by a one-hot identity, and actions are masked. With
        `state`, observations carry the whole environment's. Rewards include `shaping` times the shaped rewards, if
        there are any.
        """
        self._title = f"jaxmarl:{name}"
        if groups not in get_args(Grouping):
            raise UserError(f"{self._title}: groups is '{groups}'; expected kind, each or one")
        with quiet():
            self._environment, self._kind = make(self._title, name, settings)
        self._agents: list[str] = list(self._environment.agents)
        self._actions = {agent: _action_spec(self._title, self._environment, agent) for agent in self._agents}
        self._limit = take_limit(self._environment, self._kind)
        self._shows_state, self._shaping = state, shaping
        self._types = StateTypes(lambda key: self._reset(key)[1], lambda *now: self._step(*now)[1], self._actions)
        self._filled: Filled | None = None
        observations = self._observation_specs()
        kinds = {agent: f"{observations[agent]}{self._actions[agent]}" for agent in self._agents}
        action = self._actions
        if groups == "one" and len(set(kinds.values())) > 1:
            self._filled = Filled.of(self._title, observations, self._actions)
            observations = self._observation_specs()
            action = dict.fromkeys(self._agents, Discrete(self._filled.actions))
        self._groups = _grouped(groups, kinds)
        specs = {
            group: AgentSpec(observations[members[0]], action[members[0]], len(members), tuple(map(str, members)))
            for group, members in self._groups.items()
        }
        self.spec = EnvSpec(self._title, specs, self._limit)

    def reset(self, key: Array) -> tuple[State, PyTree]:
        observations, inner = self._reset(key)
        observation = self._by_group(self._observe(observations, inner))
        score = {agent: jnp.zeros((), jnp.float32) for agent in self._agents} if self._shaping else ()
        return State(self._types.cast(inner), jnp.zeros((), jnp.int32), score), observation

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        observations, inner, reward, done, info = self._step(state.inner, self._by_agent(action), key)
        time = state.time + 1
        at_limit = jnp.zeros((), jnp.bool) if self._limit is None else time >= self._limit
        terminated = jnp.asarray(done["__all__"], jnp.bool)
        if not self._kind.stops:
            terminated &= ~at_limit
        score: PyTree = ()
        if self._shaping:
            score = {agent: state.score[agent] + jnp.asarray(reward[agent], jnp.float32) for agent in self._agents}
            if "shaped_reward" not in info:
                raise UserError(f"{self._title} has no rewards on the way: leave out shaping={self._shaping}")
            reward = {agent: reward[agent] + self._shaping * info["shaped_reward"][agent] for agent in self._agents}
        rewards = {agent: jnp.asarray(reward[agent], jnp.result_type(float)) for agent in self._agents}
        timestep = TimeStep(
            self._by_group(self._observe(observations, inner)),
            self._by_group(rewards),
            terminated,
            at_limit & ~terminated,
            self._metrics(score, rewards, terminated),
        )
        return State(self._types.cast(inner), time, score), timestep

    def _metrics(self, score: PyTree, rewards: dict[str, Array], terminated: Array) -> PyTree:
        """The score without shaping, if there is shaping; and the winner, if JaxMARL counts wins."""
        groups: dict[str, PyTree] = {}
        for group, members in self._groups.items():
            own = {}
            if self._shaping:
                own["return"] = sum(score[agent] for agent in members) / len(members)
            if self._kind.wins:
                own["is_success"] = terminated & (rewards[members[0]] >= 1)
            groups[group] = own
        if not any(groups.values()):
            return ()
        return groups if len(groups) > 1 else next(iter(groups.values()))

    def _reset(self, key: Array) -> tuple[dict[str, Array], PyTree]:
        with self._scope():
            return self._environment.reset(key)

    def _step(self, inner: PyTree, action: dict[str, Array], key: Array) -> tuple[Any, ...]:
        with self._scope():
            return self._environment.step_env(key, inner, action)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """The context in which JaxMARL is traced."""
        with quiet(), jax.enable_x64(False) if self._kind.narrow else nullcontext():
            yield

    def _observe(self, observations: dict[str, Array], inner: PyTree) -> dict[str, PyTree]:
        """The observations of all agents, with their masks, activity and state where the environment has them."""
        with self._scope():
            legal: Any = getattr(self._environment, self._kind.legal)(inner) if self._masks else None
            active = self._kind.active(inner) if self._kind.active else None
            state = self._whole(observations, inner) if self._shows_state else None
        by_agent = {}
        for number, agent in enumerate(self._agents):
            seen = _plain(observations[agent])
            mask = None if legal is None else jnp.asarray(legal[agent], jnp.bool)
            acts = None if active is None else jnp.asarray(active[number], jnp.bool)
            if self._filled is not None:
                seen, mask = self._filled(number, seen, mask)
            if mask is not None and acts is not None:
                mask |= ~acts
            by_agent[agent] = parted(seen, mask, acts, state)
        return by_agent

    @property
    def _masks(self) -> bool:
        return bool(self._kind.legal) and all(isinstance(action, Discrete) for action in self._actions.values())

    def _whole(self, observations: dict[str, Array], inner: PyTree) -> Array:
        """[s] the state of the whole environment."""
        if hasattr(self._environment, "get_world_state"):
            whole = self._environment.get_world_state(inner)
        else:
            whole = [observations[agent] for agent in self._agents]
        return jnp.concatenate([jnp.ravel(part).astype(jnp.float32) for part in jax.tree.leaves(whole)])

    def _observation_specs(self) -> dict[str, Space]:
        by_agent = jax.eval_shape(lambda key: self._observe(*self._reset(key)), jax.eval_shape(jax.random.key, 0))
        return {agent: jax.tree.map(_observation_spec, by_agent[agent]) for agent in self._agents}

    def _by_group(self, by_agent: dict[str, PyTree]) -> PyTree:
        """[(agents,) ...] by group; for a single group, without its name."""

        def gather(members: list[str]) -> PyTree:
            if len(members) == 1:
                return by_agent[members[0]]
            return jax.tree.map(lambda *rows: jnp.stack(rows), *(by_agent[agent] for agent in members))

        groups: dict[str, PyTree] = {group: gather(members) for group, members in self._groups.items()}
        return groups if len(groups) > 1 else next(iter(groups.values()))

    def _by_agent(self, action: PyTree) -> dict[str, Array]:
        """The actions of all agents, clipped to their bounds."""
        by_group: dict[str, Any] = action if len(self._groups) > 1 else {next(iter(self._groups)): action}
        each = {
            agent: by_group[group][number] if len(members) > 1 else by_group[group]
            for group, members in self._groups.items()
            for number, agent in enumerate(members)
        }
        return {agent: _inside(self._actions[agent], each[agent]) for agent in self._agents}


class Filled(NamedTuple):
    """Makes different agents alike: padded observations with a one-hot identity, and equally many actions."""

    length: int
    actions: int
    own: tuple[int, ...]  # how many actions each agent has

    @classmethod
    def of(cls, title: str, observations: dict[str, Space], actions: dict[str, Box | Discrete]) -> Filled:
        seen = [view(space).seen for space in observations.values()]
        own = [action.n for action in actions.values() if isinstance(action, Discrete)]
        if len(own) < len(actions) or not all(isinstance(space, Box) and len(space.shape) == 1 for space in seen):
            raise UserError(
                f"{title}: groups='one' needs agents with vectors as observations and Discrete actions; use "
                "groups='kind'"
            )
        return cls(max(space.shape[0] for space in seen), max(own), tuple(own))

    def __call__(self, number: int, seen: Array, mask: Array | None) -> tuple[Array, Array]:
        """One agent's observation and legal actions."""
        filled = jnp.pad(seen.astype(jnp.float32), (0, self.length - seen.shape[0]))
        who = jax.nn.one_hot(number, len(self.own), dtype=jnp.float32)
        legal = jnp.ones(self.own[number], jnp.bool) if mask is None else mask
        return jnp.concatenate([filled, who]), jnp.pad(legal, (0, self.actions - self.own[number]))


def _grouped(groups: Grouping, kinds: dict[str, str]) -> dict[str, list[str]]:
    """The agents of each group; a group is called as its agents are, without their numbers."""
    if groups == "each":
        return {agent: [agent] for agent in kinds}
    stems = {agent: re.sub(r"_?\d+$", "", agent) or DEFAULT_GROUP for agent in kinds}
    if groups == "one":
        return {stem if len(set(stems.values())) == 1 else DEFAULT_GROUP: list(kinds) for stem in stems.values()}
    members: dict[tuple[str, str], list[str]] = {}
    for agent, kind in kinds.items():
        members.setdefault((stems[agent], kind), []).append(agent)
    called = [stem for stem, _ in members]
    return {stem if called.count(stem) == 1 else agents[0]: agents for (stem, _), agents in members.items()}


def _action_spec(title: str, environment: Any, agent: str) -> Box | Discrete:
    space = environment.action_space(agent)
    if hasattr(space, "n"):
        return Discrete(int(space.n))
    if hasattr(space, "low"):
        low, high = (np.asarray(bound, np.float32) for bound in (space.low, space.high))
        return Box(tuple(space.shape), np.dtype(np.float32), low, high)
    raise UserError(f"{title}: {agent}'s action space is a {type(space).__name__}; Runnel acts in one Box or Discrete")


def _inside(space: Box | Discrete, action: Array) -> Array:
    """An action in JaxMARL's format; the trajectory keeps the policy's."""
    low, high = (0, space.n - 1) if isinstance(space, Discrete) else (space.low, space.high)
    return jnp.clip(jnp.asarray(action, space.dtype), low, high)


def _plain(seen: Array) -> Array:
    """An observation in 32 bits or less. Bytes hold flags and counts: unsigned ones would pass for a picture's."""
    dtype = np.dtype(seen.dtype)
    if dtype == np.uint8:
        dtype = np.dtype(np.int8)
    elif dtype.kind == "f" or dtype.itemsize > 4:
        dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int32)
    return jnp.asarray(seen, dtype)


def _observation_spec(leaf: jax.ShapeDtypeStruct) -> Box:
    """Shapes and types are the arrays': JaxMARL's spaces are not exact, nor are their bounds."""
    dtype = np.dtype(leaf.dtype)
    return Box(leaf.shape, dtype, 0, 1) if dtype.kind == "b" else Box(leaf.shape, dtype)
