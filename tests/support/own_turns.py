"""A PettingZoo environment of the user's own that is played in turns: `pettingzoo:own_turns`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from pettingzoo import AECEnv


class Knockout(AECEnv):
    """Three players: 1 knocks out who comes next and takes a point off it, 0 passes. The last one has 5 more.

    The first turn of a game must not be passed. After `limit` turns the game is cut.
    """

    metadata: ClassVar = {"name": "knockout"}
    possible_agents: ClassVar = ["player_0", "player_1", "player_2"]

    def __init__(self, limit: int = 100):
        self.limit = limit

    def observation_space(self, agent: str) -> Dict:
        return Dict({"turns": Box(0, 100, (1,), np.float32), "me": Discrete(3, start=1), "action_mask": MultiBinary(2)})

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.turns = 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.left = list(self.agents)
        self.agent_selection = self.left[0]

    def observe(self, agent: str) -> dict[str, Any]:
        mine = agent == self.agent_selection
        mask = np.array([mine and self.turns > 0, mine], np.int8)
        return {"turns": np.array([self.turns], np.float32), "me": int(agent[-1]) + 1, "action_mask": mask}

    def step(self, action: int | None) -> None:
        actor = self.agent_selection
        if self.terminations[actor] or self.truncations[actor]:
            self._was_dead_step(action)
            return
        assert action in (0, 1)
        self.turns += 1
        self._cumulative_rewards[actor] = 0
        self._clear_rewards()
        if action == 1:
            victim = self._after(actor)
            self.left.remove(victim)
            self.terminations[victim] = True
            self.rewards[actor] += 1
            self.rewards[victim] -= 1
            if self.left == [actor]:
                self.rewards[actor] += 5
                self.terminations[actor] = True
        if self.turns == self.limit:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self._after(actor)
        self._accumulate_rewards()
        self._deads_step_first()

    def _after(self, player: str) -> str:
        return self.left[(self.left.index(player) + 1) % len(self.left)]

    def close(self) -> None:
        pass


def env(**settings: Any) -> Knockout:
    return Knockout(**settings)
