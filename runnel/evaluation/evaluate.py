"""Playing a trained run's policy without exploration, and filming it.

Environment i plays episode i and only its first episode counts: taking the first n episodes to end would
favour short ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel import distributions
from runnel.algorithm import Algorithm, act_one
from runnel.environment import Environment, HostEnvironment, HostStep, JaxEnvironment, ended_episodes
from runnel.errors import UserError
from runnel.evaluation.video import Video, recording_video
from runnel.execution.building import rebuild
from runnel.execution.run import Run, of_run, unsound
from runnel.graph.nodes import Graph
from runnel.ops import random
from runnel.recording.checkpoint import Checkpoints
from runnel.system import startup
from runnel.system.exits import contained
from runnel.types import PyTree, zeros

AT_A_TIME: Final = 64
LIMIT_STEPS: Final = 200_000
"""An episode that goes on for longer is cut: not every environment has a time limit."""

SEED_OFFSET: Final = 10_000
"""Added to a run's seed where none is given: its own episodes are those it was trained on."""


def evaluate(
    run: Path | str | Run,
    episodes: int = 10,
    seed: int | None = None,
    video: Path | str | None = None,
    note: Callable[[str], None] = lambda text: None,
    *,
    algorithm: Algorithm | None = None,
    environment: Any = None,
    trust: Collection[str] = (),
) -> dict[str, Any]:
    """Plays `episodes` episodes with the newest checkpoint of a run; `video` films the first of them.

    A run is named by its directory, or is what `train` returned; `algorithm` and `environment` are as for `resume`.

    `note` is called with warnings for the user, such as that a damaged checkpoint was skipped. `trust`: names of code
    in the run's configuration that may be imported although no run of this user's has signed them.
    """
    if episodes < 1:
        raise UserError(f"episodes={episodes}: found {episodes}, expected 1 or more", keywords=("episodes",))
    run_dir, config, given = of_run(run, algorithm, environment)
    with contained():
        built = rebuild(run_dir, config, distributions.default_for("host"), trusted=trust, **given)
    seed = int(config["seed"]) + SEED_OFFSET if seed is None else seed
    refuse = functools.partial(unsound, built, config["seed"])
    with contained(), recording_video(video) as film:
        states, checkpoint = Checkpoints(run_dir).load_states(built.graph.states, note, refuse)
        startup.phase(f"playing {episodes} episodes")
        player = _Player(built.graph, _as_host(built.environment), states, seed, note)
        parts = [player.play(range(1), film)] if film is not None else []
        start = len(parts)
        while start < episodes:
            # Equal parts, so that acting is compiled once.
            size = -(-(episodes - start) // -(-(episodes - start) // AT_A_TIME))
            parts.append(player.play(range(start, start + size)))
            start += size
    played = _Played(
        {group: np.concatenate([part.returns[group] for part in parts]) for group in parts[0].returns},
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.learner for part in parts]),
        [each for part in parts for each in part.env],
    )
    endless = int((played.lengths >= LIMIT_STEPS).sum())
    if endless:
        note(f"{endless} episodes did not end and were cut after {LIMIT_STEPS} steps")
    return {
        "run_dir": str(run_dir),
        "checkpoint": checkpoint.name,
        "algorithm": built.plan.algorithm.lower(),
        "environment": config["environment"]["name"],
        "seed": seed,
        **_statistics(played),
        "video": None if video is None else str(video),
    }


class _Played(NamedTuple):
    """Episodes, in order."""

    returns: dict[str, np.ndarray]  # by group: [N], the mean over the group's agents; the environment's own score
    lengths: np.ndarray  # [N]
    learner: np.ndarray  # [N] the rewards that learning would have seen; others where the environment has its own score
    env: list[dict[str, float]]  # [N] metrics of the environment


def _statistics(played: _Played) -> dict[str, Any]:
    returns = np.mean(list(played.returns.values()), axis=0)
    groups = {group: float(values.mean()) for group, values in played.returns.items()}
    env = {name: [each[name] for each in played.env if name in each] for each in played.env for name in each}
    differs = not np.array_equal(returns, played.learner)
    return {
        "episodes": len(returns),
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(played.lengths.mean()),
        "returns": [float(value) for value in returns],
        "lengths": [int(value) for value in played.lengths],
        **({"group_returns": groups} if len(groups) > 1 else {}),
        **({"learner_return": float(played.learner.mean())} if differs else {}),
        **({"env": {name: float(np.mean(values)) for name, values in env.items()}} if env else {}),
    }


def _without_score(values: dict[str, float]) -> dict[str, float]:
    """Metrics without scores and the lengths that belong to them: they are the returns and lengths of the episodes."""
    scores = {name for name in values if name.rpartition("/")[2] == "return"}
    lengths = {f"{name.removesuffix('return')}length" for name in scores}
    return {name: value for name, value in values.items() if name not in scores | lengths}


class _Player:
    """Plays first episodes of environments."""

    def __init__(
        self,
        graph: Graph,
        environment: HostEnvironment,
        states: dict[str, Any],
        seed: int,
        note: Callable[[str], None],
    ):
        self.graph, self.environment, self.seed, self.note = graph, environment, seed, note
        self.groups = graph.spec.groups
        self.params = {group: state.params for group, state in states.items()}
        self._acts = {node.group: node.function for node in graph.of_kind("act")}
        self._act = jax.jit(self._act_all)

    def play(self, indices: range, film: Video | None = None) -> _Played:
        """Episode 0 of these environments, of which the first may be filmed."""
        count = len(indices)
        vector = self.environment.open(indices, self.seed, render=film is not None)
        try:
            observation = self._each(lambda agents: zeros(agents.observation, count * agents.agents))
            out = HostStep(
                observation=observation,
                reward=self._each(lambda agents: np.zeros(count * agents.agents, jnp.result_type(float))),
                terminated=np.zeros(count, np.bool_),
                truncated=np.zeros(count, np.bool_),
                last_observation=self._each(lambda agents: zeros(agents.observation, count * agents.agents)),
            )
            memory = {group: self._memory(group, count) for group in self.groups}
            returns = {group: np.zeros(count) for group in self.groups}
            lengths, playing = np.zeros(count, np.int64), np.ones(count, np.bool_)
            env: list[dict[str, float]] = [{} for _ in indices]
            vector.reset(observation)
            begun = vector.episode_numbers()
            columns = self._each(lambda agents: np.arange(len(indices) * agents.agents, dtype=np.int32))
            for group, agents in self.groups.items():
                columns[group] += indices.start * agents.agents
            for step in range(LIMIT_STEPS):
                if film is not None:
                    film.add(vector.render(0))
                actions, memory = self._act(self.params, observation, memory, columns, jnp.int32(step))
                # A copy: what JAX gives is read-only, and environments may keep what they are given.
                vector.step({group: np.array(action) for group, action in actions.items()}, out)
                for group, agents in self.groups.items():
                    reward = out.reward[group].reshape(count, agents.agents).mean(1)
                    returns[group] += np.where(playing, reward, 0.0)
                lengths += playing
                ended = out.terminated | out.truncated
                if (ended & playing).any():
                    playing &= vector.episode_numbers() == begun  # a game may go on after the loss of a life
                    for each in ended_episodes(vector):
                        if each.episode == begun[each.row]:
                            env[each.row] = dict(each.values)
                    memory = self._begun(memory, ended)
                if not playing.any():
                    break
            failed = [failure for failure in vector.failures() if failure.episode == 0]
            if failed:
                cut = "1 episode was" if len(failed) == 1 else f"{len(failed)} episodes were"
                self.note(f"{cut} cut: environment {failed[0].index}: {failed[0].what}")
        finally:
            vector.close()
        learner = np.mean(list(returns.values()), axis=0)
        for row, values in enumerate(env):
            for group in returns:
                prefix = f"{group}/" if f"{group}/return" in values else ""
                returns[group][row] = values.get(f"{prefix}return", returns[group][row])
        return _Played(returns, lengths, learner, [_without_score(values) for values in env])

    def _each(self, make: Callable[[Any], Any]) -> dict[str, Any]:
        return {group: make(agents) for group, agents in self.groups.items()}

    def _memory(self, group: str, count: int) -> PyTree:
        agents = self.groups[group]
        one = self.graph.algorithm.initial_memory(agents)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (count * agents.agents, *jnp.shape(x))), one)

    def _begun(self, memory: dict[str, PyTree], first: np.ndarray) -> dict[str, PyTree]:
        """The memory to act from, that of an episode's start where one begins [n]."""

        def pick(fresh: Any, old: Any, agents: int) -> Any:
            return jnp.where(first.repeat(agents).reshape(-1, *[1] * (old.ndim - 1)), fresh, old)

        count = len(first)
        return {
            group: jax.tree.map(
                functools.partial(pick, agents=agents.agents), self._memory(group, count), memory[group]
            )
            for group, agents in self.groups.items()
        }

    def _act_all(self, params: PyTree, observation: PyTree, memory: PyTree, columns: PyTree, step: Any) -> Any:
        actions, memories = {}, {}
        base = random.base_key(self.seed, random.ACT)
        for group, act in self._acts.items():

            def one(o: PyTree, m: PyTree, key: Any, index: Any, act: Any = act, p: PyTree = params[group]) -> Any:
                return act_one(act, p, o, m, key, False, index)

            keys = random.column_keys(base, step, columns[group])
            given = jax.vmap(one)(observation[group], memory[group], keys, columns[group])
            actions[group], memories[group] = given.action, given.memory
        return actions, memories


def _as_host(environment: Environment) -> HostEnvironment:
    if isinstance(environment, JaxEnvironment):
        from runnel.envs.stepped import Stepped

        return Stepped(environment)
    return environment
