"""Steps both kinds of PettingZoo's environments, parallel and turn-based, through one interface."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pettingzoo.utils.conversions import aec_to_parallel_wrapper
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, BaseWrapper, OrderEnforcingWrapper

from runnel.envs.team_games import Agent, Moment


class Parallel:
    """All agents that are there act in every step: a `pettingzoo.ParallelEnv`."""

    def __init__(self, environment: Any):
        self.environment = environment
        if type(environment) is aec_to_parallel_wrapper:
            environment.aec_env = _strip(environment.aec_env)

    def reset(self, seed: int) -> Moment:
        observations, infos = self.environment.reset(seed=seed)
        return _moment(observations, infos, {}, tuple(self.environment.agents), {})

    def step(self, actions: Mapping[Agent, Any]) -> Moment:
        chosen = {agent: actions[agent] for agent in self.environment.agents}
        observations, rewards, terminations, truncations, infos = self.environment.step(chosen)
        # Agents that are done should have left `agents`; not every environment sees to it.
        done = {agent for agent in terminations if terminations[agent] or truncations.get(agent)}
        acting = [agent for agent in self.environment.agents if agent not in done]
        return _moment(observations, infos, rewards, acting, terminations)


class Turns:
    """One agent acts in each step: a `pettingzoo.AECEnv`."""

    def __init__(self, environment: Any):
        self.environment = _strip(environment)

    def reset(self, seed: int) -> Moment:
        self.environment.reset(seed=seed)
        self._bury()
        return _moment(self._observations(), self.environment.infos, {}, self._acting(), {})

    def step(self, actions: Mapping[Agent, Any]) -> Moment:
        game = self.environment
        game.step(actions[game.agent_selection])
        # The rewards of this step. `_cumulative_rewards` sums an agent's rewards since its own last turn, and would
        # reach the loser of a game only in a turn that it no longer has.
        rewards, terminations = dict(game.rewards), dict(game.terminations)
        observations = self._observations()
        if all(map(self._is_dead, game.agents)):
            return _moment(observations, game.infos, rewards, (), terminations)
        if self._bury():  # another has the turn now, and another mask
            observations |= self._observations()
        return _moment(observations, game.infos, rewards, self._acting(), terminations)

    def _observations(self) -> dict[Agent, Any]:
        return {agent: self.environment.observe(agent) for agent in self.environment.agents}

    def _acting(self) -> Collection[Agent]:
        return (self.environment.agent_selection,) if self.environment.agents else ()

    def _is_dead(self, agent: Agent) -> bool:
        return self.environment.terminations[agent] or self.environment.truncations[agent]

    def _bury(self) -> bool:
        """Takes the final turns of agents that have died, in which they only leave; returns whether there were any."""
        game, buried = self.environment, False
        for _ in range(len(game.agents)):
            if not game.agents or not self._is_dead(game.agent_selection):
                break
            game.step(None)
            buried = True
        return buried


def _moment(
    observations: Mapping[Agent, Any],
    infos: Mapping[Agent, Mapping[str, Any]],
    rewards: Mapping[Agent, float],
    acting: Collection[Agent],
    terminations: Mapping[Agent, bool],
) -> Moment:
    """An episode ends where no agent is left to act: it terminated if all agents did that were there until now."""
    terminated = not acting and all(terminations.values())
    return Moment(observations, infos, rewards, acting, terminated, not acting and not terminated)


def _strip(environment: Any) -> Any:
    """Removes the wrappers that only check the use of the environment.

    They intercept every attribute access, and take a third of the time of a step of mpe2.
    """
    environment = _needed(environment)
    outer = environment
    while isinstance(outer, BaseWrapper):
        outer.env = _needed(outer.env)
        outer = outer.env
    return environment


def _needed(environment: Any) -> Any:
    while type(environment) in (AssertOutOfBoundsWrapper, OrderEnforcingWrapper):
        environment = environment.env
    return environment
