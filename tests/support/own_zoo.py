"""A PettingZoo environment of the user's own in which agents act at once, die and arrive: `pettingzoo:own_zoo`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

END = 5
"""Steps of an episode."""


class Caravan(ParallelEnv):
    """Of three walkers two set out, the first dies after 2 steps, and the third arrives after 3.

    Walker i sees the step, i + 1, and a number drawn at the reset. Every step gives walker i a reward of i + 1, and the
    step in which it dies 10 less. `end` says how the episode ends for those that are left; `fault` what goes wrong in
    step 4, `masked` whether infos tell which actions are legal, all but i, and `tells` whether they tell numbers.
    """

    metadata: ClassVar = {"name": "caravan", "render_modes": ["rgb_array"]}
    possible_agents: ClassVar = ["walker_0", "walker_1", "walker_2"]

    def __init__(
        self,
        end: str = "terminated",
        fault: str = "",
        masked: bool = False,
        tells: bool = False,
        render_mode: str | None = None,
    ):
        self.end, self.fault, self.masked, self.render_mode = end, fault, masked, render_mode
        self.tells = tells

    def observation_space(self, agent: str) -> Box:
        return Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Discrete:
        return Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.drawn = np.random.default_rng(seed).random()
        self.steps, self.agents = 0, self.possible_agents[:2]
        return {agent: self._see(agent) for agent in self.agents}, self._infos()

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        assert all(action in self.action_space(agent) for agent, action in actions.items())
        self.steps += 1
        there = list(self.agents)
        rewards: dict[str, Any] = {agent: float(agent[-1]) + 1 for agent in there}
        over = self.steps == END
        terminations = dict.fromkeys(there, over and self.end != "truncated")
        truncations = dict.fromkeys(there, over and self.end != "terminated")
        if over and self.end == "mixed":
            terminations[there[0]], truncations[there[0]] = True, False
            terminations[there[1]], truncations[there[1]] = False, True
        if self.steps == 2:
            terminations["walker_0"] = True
            rewards["walker_0"] -= 10
        if self.steps == 3:
            self.agents = [*self.agents, "walker_2"]
        observations = {agent: self._see(agent) for agent in dict.fromkeys([*there, *self.agents])}
        self.agents = [agent for agent in self.agents if not (terminations.get(agent) or truncations.get(agent))]
        if self.steps == 4:
            self._go_wrong(observations, rewards)
        infos = self._infos()
        if self.tells:
            infos = {agent: {**infos.get(agent, {}), **self._told(agent)} for agent in observations}
        return observations, rewards, terminations, truncations, infos

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.steps, np.uint8)

    def close(self) -> None:
        pass

    def _see(self, agent: str) -> np.ndarray:
        return np.array([self.steps, float(agent[-1]) + 1, self.drawn], np.float32)

    def _infos(self) -> dict[str, dict[str, Any]]:
        masks = {agent: (np.arange(4) != int(agent[-1])).astype(np.int8) for agent in self.agents}
        return {agent: {"action_mask": mask} if self.masked else {} for agent, mask in masks.items()}

    def _told(self, agent: str) -> dict[str, Any]:
        last = {"last": int(agent[-1])} if agent == "walker_2" else {}
        return {"place": int(agent[-1]), "name": agent, **last}

    def _go_wrong(self, observations: dict[str, Any], rewards: dict[str, Any]) -> None:
        match self.fault:
            case "raise":
                raise ValueError("the well is dry")
            case "nan":
                observations["walker_2"] = observations["walker_2"] * np.float32(np.nan)
            case "shape":
                observations["walker_2"] = np.zeros(2, np.float32)
            case "reward":
                rewards["walker_1"] = float("nan")
            case "huge":
                rewards["walker_1"] = 1e300
            case "complex":
                observations["walker_2"] = observations["walker_2"] + 0j
            case "exit":
                raise SystemExit(0)
            case "missing":
                del observations["walker_1"]
            case "stranger":
                self.agents = [*self.agents, "bandit_0"]


def parallel_env(**settings: Any) -> Caravan:
    return Caravan(**settings)
