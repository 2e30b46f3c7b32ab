"""Games of OpenSpiel (2.0): in turns or with simultaneous moves, with chance and hidden cards. No JAX is imported here.

Agent k is OpenSpiel's player k, and nothing changes seats between episodes. A step is one decision: the move of the
player whose turn it is, or one move of every player. Chance before the next decision is drawn within the step, from the
episode's seed. Rewards are what the returns changed by in the step. `env/player_0_return` is the return of player 0,
who moves first in most games: in self-play of a zero-sum game, that of the group is always 0.

A move that is not legal, which the mask excludes, ends the game. It has no rule for that: the player then has the
game's lowest utility, and in a zero-sum game the others share what it lost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import gymnasium
import numpy as np
import pyspiel

from runnel.envs.team_games import Agent, Moment
from runnel.envs.team_vector import TeamVector
from runnel.envs.teams import groups_of, sight_of, state_of, team_of
from runnel.errors import UserError, nearest
from runnel.types import AgentSpec, EnvSpec

GROUPS: Final = ("kind", "each", "one")

TENSORS: Final = ("information_state", "observation")
"""The tensors that a player may observe: its whole history, or its current observation."""

SEED: Final = "rng_seed"
"""The parameter of games that draw their chance themselves."""


KINDS: Final = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
"""The types of a game's parameters, as errors describe them."""


class OpenSpielEnvironment:
    """A game by its OpenSpiel name, with its parameters as settings: `kuhn_poker`, `goofspiel`.

    Besides those: `observe` selects a tensor (None: the information state, if the game has it), `groups` which players
    share a policy ("kind", "one": all; "each": none), `state` whether observations carry all players' tensors.
    """

    def __init__(
        self, name: str, /, *, observe: str | None = None, groups: str = "kind", state: bool = False, **settings: Any
    ):
        self._name = f"openspiel:{name}"
        if groups not in GROUPS:
            raise UserError(f"{self._name}: groups is '{groups}'{nearest(groups, GROUPS)}")
        self._make = _find(self._name, name, settings)
        self._observe = _tensor(self._name, self._make({}), observe)
        probe = Table(self._make, self._observe)
        moment = probe.reset(0)
        sights = {agent: sight_of(probe, agent, moment) for agent in probe.possible_agents}
        several = len(sights) > 1
        self._state, size = state_of(probe, sights) if state else (None, 0)
        self._teams = {
            group: team_of(agents, sights[agents[0]], several, size, self._name)
            for group, agents in groups_of(sights, groups, self._name).items()
        }
        specs = {
            group: AgentSpec(
                team.observations.space, team.actions.space, len(team.agents), tuple(team.agents), team.native
            )
            for group, team in self._teams.items()
        }
        self.spec = EnvSpec(self._name, specs, int(probe.game.max_game_length()))

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> TeamVector:
        if render:
            raise UserError(f"{self._name} cannot be rendered: OpenSpiel draws no pictures of its games")
        table = partial(Table, self._make, self._observe)
        return TeamVector(self._name, table, indices, seed, self._teams, self._state)


class _Maker:
    """Loads a game with settings, and with more of them."""

    def __init__(self, name: str, settings: Mapping[str, Any]):
        self._name, self._settings = name, settings

    def __call__(self, more: Mapping[str, Any]) -> Any:
        return pyspiel.load_game(self._name, {**self._settings, **more})


class Table:
    """One game that is played repeatedly: a `runnel.envs.team_games.Game`, and its own environment."""

    def __init__(self, make: _Maker, observe: str):
        self.environment = self
        self.game = make({})
        kind = self.game.get_type()
        self._make = make if _draws_itself(kind) else None
        self._zero_sum = kind.utility == pyspiel.GameType.Utility.ZERO_SUM
        self._observe = f"{observe}_tensor"
        shape = tuple(getattr(self.game, f"{self._observe}_shape")())
        actions = self.game.num_distinct_actions()
        seen = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        mask = gymnasium.spaces.Box(0, 1, (actions,), cast(Any, np.bool_))
        self._shape, self._waits = shape, np.zeros(actions, np.bool_)
        self._space = gymnasium.spaces.Dict({"observation": seen, "action_mask": mask})
        self._actions = gymnasium.spaces.Discrete(actions)
        players = self.game.num_players()
        self.possible_agents = [f"player_{player}" for player in range(players)] if players > 1 else ["agent"]

    def observation_space(self, agent: Agent) -> gymnasium.Space:
        return self._space

    def action_space(self, agent: Agent) -> gymnasium.Space:
        return self._actions

    def reset(self, seed: int) -> Moment:
        self._rng = np.random.default_rng(seed)
        if self._make is not None:
            self.game = self._make({SEED: 1 + seed % (2**31 - 2)})  # not 0 or less, which some take for the time
        self._played = self.game.new_initial_state()
        self._draw()
        self._score = 0.0
        return self._moment(np.zeros(len(self.possible_agents)), self._acting())

    def step(self, actions: Mapping[Agent, Any]) -> Moment:
        chosen = [int(actions[agent]) for agent in self.possible_agents]
        acting, before = self._acting(), np.array(self._played.returns())
        wrong = [player for player in acting if chosen[player] not in self._played.legal_actions(player)]
        if wrong:
            return self._moment(self._penalties(wrong, before), (), over=True)
        if self._played.is_simultaneous_node():
            self._played.apply_actions([chosen[p] if p in acting else 0 for p in range(len(chosen))])
        else:
            self._played.apply_action(chosen[acting[0]])
        self._draw()
        over = self._played.is_terminal()
        return self._moment(np.array(self._played.returns()) - before, () if over else self._acting(), over)

    def close(self) -> None:
        pass

    def _draw(self) -> None:
        """Draws the outcomes of chance nodes before the next decision."""
        while self._played.is_chance_node():
            outcomes, probabilities = zip(*self._played.chance_outcomes(), strict=True)
            drawn = np.searchsorted(np.cumsum(probabilities), self._rng.random(), side="right")
            self._played.apply_action(outcomes[min(int(drawn), len(outcomes) - 1)])

    def _acting(self) -> Sequence[int]:
        """The players who have a decision to make."""
        if self._played.is_simultaneous_node():
            return [player for player in range(self.game.num_players()) if self._played.legal_actions(player)]
        return [self._played.current_player()]

    def _penalties(self, losers: Collection[int], returns: np.ndarray) -> np.ndarray:
        """[players] the rewards after an illegal move, which ends the game."""
        rewards = np.zeros(len(returns))
        rewards[list(losers)] = self.game.min_utility() - returns[list(losers)]
        if self._zero_sum and len(losers) < len(returns):
            others = [player for player in range(len(returns)) if player not in losers]
            rewards[others] = -rewards.sum() / len(others)
        return rewards

    def _moment(self, rewards: np.ndarray, acting: Collection[int], over: bool = False) -> Moment:
        names = self.possible_agents
        shown = {agent: self._shown(player, player in acting) for player, agent in enumerate(names)}
        given = dict(zip(names, rewards.tolist(), strict=True))
        self._score += given[names[0]]
        infos = {names[0]: {"player_0_return": self._score}} if over and len(names) > 1 else {}
        return Moment(shown, infos, given, [names[player] for player in acting], terminated=over)

    def _shown(self, player: int, acts: bool) -> dict[str, np.ndarray]:
        seen = np.array(getattr(self._played, self._observe)(player), np.float32).reshape(self._shape)
        mask = np.array(self._played.legal_actions_mask(player), np.bool_) if acts else self._waits
        return {"observation": seen, "action_mask": mask}


def _find(title: str, name: str, settings: dict[str, Any]) -> _Maker:
    """Loads the game of that name, once to check it."""
    kinds = {kind.short_name: kind for kind in pyspiel.registered_games()}
    if name not in kinds:
        playable = [known for known, kind in kinds.items() if kind.default_loadable and _tensors(kind)]
        raise UserError(
            f"no game of OpenSpiel is called '{name}'{nearest(name, playable)}", page="add-an-environment#openspiel"
        )
    kind = kinds[name]
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise UserError(f"{title} is a mean-field game; expected a game of one or more players")
    known = dict(kind.parameter_specification)
    if _draws_itself(kind) and known.pop(SEED, None) is None and kind.default_loadable:
        raise UserError(f"{title} draws chance events itself, without a seed: its episodes cannot be replayed")
    for setting, value in settings.items():
        if setting not in known:
            raise UserError(f"{title} has no setting '{setting}'{nearest(setting, [*known, 'groups', 'observe'])}")
        if type(known[setting]) is float and type(value) is int:
            settings[setting] = float(value)
        elif type(known[setting]) in KINDS and type(value) is not type(known[setting]):
            wanted = KINDS[type(known[setting])]
            raise UserError(f"{title}: {setting} is {value!r}; expected {wanted}, like {known[setting]!r}")
    if not kind.min_num_players <= settings.get("players", kind.min_num_players) <= kind.max_num_players:
        raise UserError(
            f"{title}: players is {settings['players']}; expected {kind.min_num_players} to {kind.max_num_players}"
        )
    make = _Maker(name, settings)
    try:
        make({})
    except (pyspiel.SpielError, IndexError) as problem:  # of a parameter that it needs
        given = ", ".join(settings) or "no settings"
        raise UserError(f"{title} cannot be made with {given}: {' '.join(str(problem).split())}") from problem
    return make


def _draws_itself(kind: Any) -> bool:
    """Whether a game hides its chance nodes; a new game with a seed is then created for every episode."""
    return kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC


def _tensors(kind: Any) -> list[str]:
    return [tensor for tensor in TENSORS if getattr(kind, f"provides_{tensor}_tensor")]


def _tensor(title: str, game: Any, observe: str | None) -> str:
    """The tensor that players observe."""
    provided = [tensor for tensor in _tensors(game.get_type()) if _has_shape(game, tensor)]
    if not provided:
        raise UserError(
            f"{title} has no tensor that a player could see; expected a game with one of {', '.join(TENSORS)}"
        )
    if observe is None:
        return provided[0]
    if observe not in provided:
        raise UserError(f"{title}: observe is '{observe}'; this game has {' and '.join(provided)}")
    return observe


def _has_shape(game: Any, tensor: str) -> bool:
    """Whether a game really has a tensor that it announces."""
    try:
        getattr(game, f"{tensor}_tensor_shape")()
    except pyspiel.SpielError:
        return False
    return True
