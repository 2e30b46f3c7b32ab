"""A vector of environments with several agents, stepped one after the other. No JAX is imported here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from runnel.environment import Episode, HostStep
from runnel.envs import infos, spaces
from runnel.envs.recovery import EnvironmentFault, fault_of_observation, fault_of_reward, raised
from runnel.envs.team_games import Agent, Game, Moment
from runnel.envs.teams import State, Team
from runnel.envs.vector import RecoveringVector, ended_early
from runnel.types import PyTree, space_map, zeros


class _Played(NamedTuple):
    """The result of a step, by group, and whether the episode ended with it."""

    shown: dict[str, PyTree]  # [agents, ...]
    rewards: dict[str, np.ndarray]  # [agents]
    terminated: bool = False
    truncated: bool = False
    infos: Mapping[Agent, Any] | None = None  # None of a step that failed


class TeamVector(RecoveringVector[Game]):
    """Several environments of one name. A group's rows are its agents in the first environment, in the second, ..."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Game],
        indices: Sequence[int],
        seed: int,
        teams: Mapping[str, Team],
        state: State | None,
    ):
        """`state` reads the whole state from an environment and its result, if observations carry it."""
        super().__init__(name, make, indices, seed)
        self._teams, self._state = teams, state
        self._agents = {agent for team in teams.values() for agent in team.agents}
        self._shown = self._places(len(self._indices))
        self._seats = [self._of_row(self._shown, row) for row in range(len(self._indices))]
        self._scratch = self._places(1)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        self._rewards = next(iter(out.reward.values())).dtype
        out.terminated.fill(False)
        out.truncated.fill(False)
        ends: list[tuple[int, _Played]] = []
        for row, chosen in enumerate(self._choices(action, len(self._indices))):
            played = self._play(row, chosen)
            if isinstance(played, EnvironmentFault):
                self._fail(row, played, stepping=True)
                nothing = {group: np.zeros(len(team.agents)) for group, team in self._teams.items()}
                played = _Played(self._seats[row], nothing, truncated=True)
            self._show(row, played)
            for group, reward in self._of_row(out.reward, row).items():
                reward[...] = played.rewards[group]
            if played.terminated or played.truncated:
                ends.append((row, played))
        self._copy_shown(out.observation)
        for row, played in ends:
            self._end(row, played, out)
        if self.watch is not None:
            self.watch(-1)

    def render(self, row: int) -> np.ndarray:
        return np.asarray(self.environments[row].environment.render(), np.uint8)

    def _use(self, row: int, environment: Game) -> None:
        self.environments[row] = environment

    def _close(self, environment: Game) -> None:
        environment.environment.close()

    def _copy_shown(self, observation: dict[str, PyTree]) -> None:
        self._copy(observation, self._shown)

    def _begin_episode(self, row: int, seed: int) -> EnvironmentFault | None:
        begun = self._read(row, "reset", seed)
        if isinstance(begun, EnvironmentFault):
            return begun
        if begun.terminated or begun.truncated:
            return EnvironmentFault("reset left no agent that can act", misfit=True)
        self._show(row, begun)
        return None

    def _replay(self, row: int, episode: Episode) -> EnvironmentFault | None:
        steps = max(map(len, episode.actions.values()), default=0)
        if not steps:
            return None
        # The steps of one environment, as rows, lie as environments do in one step.
        actions = {
            group: np.asarray(episode.actions[group]).reshape(-1, *team.actions.space.shape)
            for group, team in self._teams.items()
        }
        for step, chosen in enumerate(self._choices(actions, steps), 1):
            played = self._play(row, chosen)
            if isinstance(played, EnvironmentFault):
                return played
            if played.terminated or played.truncated:
                return ended_early(steps, step)
            self._show(row, played)
        return None

    def _end(self, row: int, played: _Played, out: HostStep) -> None:
        """Records the current observation as an episode's last one, and shows the first of the next."""
        out.terminated[row] = played.terminated
        out.truncated[row] = not played.terminated
        self._copy(self._of_row(out.last_observation, row), self._seats[row])
        if played.infos is not None:
            self._ended.add(row, self._episodes[row], self._metrics(played.infos))
        self._episodes[row] += 1
        self._begin(row)
        self._copy(self._of_row(out.observation, row), self._seats[row])

    def _metrics(self, given: Mapping[Agent, Any]) -> dict[str, float]:
        """Metrics of an episode that has ended, from the agents' infos: by group, the mean over agents that report
        them."""
        own = {
            group: infos.means(given[agent] for agent in team.agents if agent in given)
            for group, team in self._teams.items()
        }
        return infos.by_group(own)

    def _choices(self, actions: Mapping[str, np.ndarray], rows: int) -> list[dict[Agent, Any]]:
        """The actions of each environment, by agent."""
        chosen: list[dict[Agent, Any]] = [{} for _ in range(rows)]
        for group, team in self._teams.items():
            each = iter(team.actions.unpack(actions[group]))
            for one in chosen:
                one.update(zip(team.agents, each, strict=False))  # takes as many as there are agents
        return chosen

    def _play(self, row: int, chosen: Mapping[Agent, Any]) -> _Played | EnvironmentFault:
        return self._read(row, "step", chosen)

    def _read(self, row: int, call: str, argument: Any) -> _Played | EnvironmentFault:
        """The result of a call of an environment, in rows by group; or its fault."""
        given = self._try(row, call, self._call, row, call, argument)
        if isinstance(given, EnvironmentFault):
            return given
        moment, state = given
        for agent in moment.acting:
            if agent not in self._agents:
                return EnvironmentFault(f"{call} has an agent {agent!r}, which is not in possible_agents", misfit=True)
            if moment.observations.get(agent) is None:
                return EnvironmentFault(
                    f"{call} returned no observation for {agent}, which is one of its agents", misfit=True
                )
        try:
            shown, rewards = {}, {}
            for group, team in self._teams.items():
                shown[group] = team.observations.write(self._scratch[group], team.shown(moment, state))
                given = np.array(team.rewards(moment))
                rewards[group] = np.zeros(len(team.agents), self._rewards)
                if not spaces.are_rewards(given, rewards[group]):
                    raise ValueError("rewards are not finite numbers")
                rewards[group][:] = given
        except Exception as problem:
            return self._fault(call, moment, state) or raised(call, problem)
        return _Played(shown, rewards, moment.terminated, moment.truncated, moment.infos)

    def _call(self, row: int, call: str, argument: Any) -> tuple[Moment, np.ndarray | None]:
        game = self.environments[row]
        moment = getattr(game, call)(argument)
        return moment, None if self._state is None else self._state(game.environment, moment)

    def _fault(self, call: str, moment: Moment, state: np.ndarray | None) -> EnvironmentFault | None:
        """The first fault in the observations and rewards of the agents."""
        for team in self._teams.values():
            with contextlib.suppress(Exception):  # values that cannot even be described: the exception is reported
                given = zip(team.agents, team.shown(moment, state), team.rewards(moment), strict=True)
                for agent, shown, reward in given:
                    fault = fault_of_observation(call, shown, team.observations) or fault_of_reward(
                        reward, self._rewards
                    )
                    if fault is not None:
                        return fault._replace(what=f"{fault.what}, for {agent}")
        return None

    def _show(self, row: int, played: _Played) -> None:
        self._copy(self._seats[row], played.shown)

    def _copy(self, to: Mapping[str, PyTree], rows: Mapping[str, PyTree]) -> None:
        for group, team in self._teams.items():
            team.observations.copy(to[group], rows[group])

    def _places(self, environments: int) -> dict[str, PyTree]:
        """Arrays for the observations of `environments` environments."""
        return {
            group: zeros(team.observations.space, environments * len(team.agents))
            for group, team in self._teams.items()
        }

    def _of_row(self, rows: Mapping[str, PyTree], row: int) -> dict[str, PyTree]:
        """The part of arrays by group that belongs to one environment."""

        def mine(array: np.ndarray, agents: int) -> np.ndarray:
            return array[row * agents : (row + 1) * agents]

        return {
            group: space_map(partial(mine, agents=len(team.agents)), rows[group]) for group, team in self._teams.items()
        }
