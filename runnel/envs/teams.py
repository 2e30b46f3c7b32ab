"""Groups of agents that share a policy, and their observations in rows. No JAX is imported here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium.spaces import utils

from runnel.envs import spaces
from runnel.envs.team_games import Agent, Moment
from runnel.errors import UserError
from runnel.observations import parted
from runnel.types import DEFAULT_GROUP, Discrete, MultiDiscrete, NativeFormat

MASK = "action_mask"

Split = Callable[[Any, Mapping[str, Any]], tuple[Any, Any]]
"""(observation, info) -> the agent's observation, and its action mask or None."""

State = Callable[[Any, Moment], np.ndarray]
"""(environment, its result) -> its whole state, `[s]`."""


@dataclass(frozen=True)
class Team:
    """A group of agents that are alike, and the conversion of their observations and actions."""

    agents: tuple[Agent, ...]
    observations: spaces.Observations  # with all the parts they have
    actions: spaces.Actions
    split: Split
    blank: Any  # what an agent sees that is not there
    everything: np.ndarray | None  # the mask that allows all actions, where there are masks
    active: bool  # whether observations say who acts
    native: NativeFormat

    def shown(self, moment: Moment, state: np.ndarray | None) -> list[Any]:
        """The observation of each agent."""
        return [self._shown(agent, moment, state) for agent in self.agents]

    def rewards(self, moment: Moment) -> list[Any]:
        return [moment.rewards.get(agent, 0.0) for agent in self.agents]

    def _shown(self, agent: Agent, moment: Moment, state: np.ndarray | None) -> Any:
        acts = agent in moment.acting
        observation = moment.observations.get(agent)
        if observation is None:
            seen, mask = self.blank, None
        else:
            seen, mask = self.split(observation, moment.infos.get(agent, {}))
        if mask is not None and not np.any(mask):
            acts = False  # there is nothing that it could do
        if self.everything is not None and (mask is None or not acts):
            mask = self.everything
        return parted(seen, mask, acts if self.active else None, state)


class Sight(NamedTuple):
    """The observation and action of one agent, as spaces of its environment."""

    seen: gymnasium.Space
    action: gymnasium.Space
    split: Split
    masked: bool

    def is_like(self, other: Sight) -> bool:
        return (self.seen, self.action, self.masked) == (other.seen, other.action, other.masked)

    def __str__(self) -> str:
        return f"sees {self.seen} and does {self.action}"


def sight_of(world: Any, agent: Agent, moment: Moment) -> Sight:
    """Reads an agent's spaces; its mask is part of the observation, or in the info beside it."""
    space, action = world.observation_space(agent), world.action_space(agent)
    if isinstance(space, gymnasium.spaces.Dict) and MASK in space.spaces:
        rest = {key: part for key, part in space.spaces.items() if key != MASK}
        alone = list(rest) == ["observation"]
        seen = rest["observation"] if alone else gymnasium.spaces.Dict(rest)
        return Sight(seen, action, _beside_its_mask if alone else _among_its_mask, True)
    if any(MASK in info for info in moment.infos.values()) and not isinstance(action, gymnasium.spaces.Box):
        return Sight(space, action, _with_mask_in_info, True)
    return Sight(space, action, _without_mask, False)


def _beside_its_mask(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    return observation["observation"], observation[MASK]


def _among_its_mask(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    return {key: part for key, part in observation.items() if key != MASK}, observation[MASK]


def _with_mask_in_info(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    return observation, info.get(MASK)


def _without_mask(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Any]:
    return observation, None


def groups_of(sights: Mapping[Agent, Sight], groups: str, name: str) -> dict[str, tuple[Agent, ...]]:
    """The agents of each group. A group is named after its agents' kind, or its first agent where two would clash."""
    if groups == "each":
        return {str(agent): (agent,) for agent in sights}
    if groups == "one":
        return _one_group(sights, name)
    together: dict[str, list[Agent]] = {}
    for agent, sight in sights.items():
        kind = _kind(agent)
        for members in together.values():
            if _kind(members[0]) == kind and sights[members[0]].is_like(sight):
                members.append(agent)
                break
        else:
            together[str(agent) if kind in together else kind] = [agent]
    return {group: tuple(members) for group, members in together.items()}


def _one_group(sights: Mapping[Agent, Sight], name: str) -> dict[str, tuple[Agent, ...]]:
    first, *others = sights
    for other in others:
        if not sights[first].is_like(sights[other]):
            raise UserError(
                f"{name}: groups is 'one', but {first} {sights[first]}, and {other} {sights[other]}; agents that share "
                "a policy need equal spaces. Use 'kind' or 'each'"
            )
    kinds = {_kind(agent) for agent in sights}
    return {kinds.pop() if len(kinds) == 1 else DEFAULT_GROUP: tuple(sights)}


def _kind(agent: Agent) -> str:
    return re.sub(r"_?\d+$", "", str(agent)) or DEFAULT_GROUP


def team_of(agents: tuple[Agent, ...], sight: Sight, active: bool, state: int, name: str) -> Team:
    actions = spaces.actions(sight.action, name)
    everything = np.ones(_choices(actions, name), np.bool_) if sight.masked else None
    parts = parted(
        sight.seen,
        action_mask=None if everything is None else _booleans(everything.shape),
        active=_booleans(()) if active else None,
        state=gymnasium.spaces.Box(-np.inf, np.inf, (state,), np.float32) if state else None,
    )
    space = gymnasium.spaces.Dict(parts) if isinstance(parts, dict) else parts
    observations = spaces.observations(space, name)
    native = spaces.native_format(space, sight.action, name)
    return Team(agents, observations, actions, sight.split, _blank(sight.seen), everything, active, native)


def _booleans(shape: tuple[int, ...]) -> gymnasium.spaces.Box:
    return gymnasium.spaces.Box(0, 1, shape, cast(Any, np.bool_))


def _choices(actions: spaces.Actions, name: str) -> int:
    """The number of booleans in a mask."""
    match actions.space:
        case Discrete(n):
            return n
        case MultiDiscrete(sizes):
            return sum(sizes)
    raise UserError(
        f"{name} has a mask for its actions, which are no whole numbers; expected Discrete or MultiDiscrete"
    )


def _blank(space: gymnasium.Space) -> Any:
    """The value that is written for an absent agent, zeros in Runnel's format."""
    match space:
        case gymnasium.spaces.Dict():
            return {key: _blank(part) for key, part in space.spaces.items()}
        case gymnasium.spaces.Tuple():
            return tuple(map(_blank, space.spaces))
        case gymnasium.spaces.Discrete() | gymnasium.spaces.MultiDiscrete():
            return space.start
    return np.zeros(space.shape or (), space.dtype)


def state_of(world: Any, sights: Mapping[Agent, Sight]) -> tuple[State, int]:
    """The function that reads the whole state, and the state's size: the environment's own, or all observations
    concatenated."""
    try:
        return _own_state, _own_state(world, Moment({}, {}, {}, ())).size
    except (AttributeError, NotImplementedError, TypeError):
        return partial(_all_observations, sights), sum(utils.flatdim(sight.seen) for sight in sights.values())


def _own_state(world: Any, moment: Moment) -> np.ndarray:
    return np.asarray(world.state()).astype(np.float32, casting="same_kind", copy=False).reshape(-1)


def _all_observations(sights: Mapping[Agent, Sight], world: Any, moment: Moment) -> np.ndarray:
    def flat(agent: Agent, sight: Sight) -> Any:
        observation = moment.observations.get(agent)
        if observation is None:
            return np.zeros(utils.flatdim(sight.seen))
        return utils.flatten(sight.seen, sight.split(observation, {})[0])

    return np.concatenate([flat(agent, sight) for agent, sight in sights.items()], dtype=np.float32)
