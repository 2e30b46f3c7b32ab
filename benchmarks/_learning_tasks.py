"""The rows of the learning table, as data: what is trained, for how long, what it must reach, what others published."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple


class Wanted(NamedTuple):
    """The returns that are good enough."""

    least: float = -math.inf
    most: float = math.inf

    def holds(self, value: float | None) -> bool:
        return value is not None and self.least <= value <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:,g} exactly"
        return f"at least {self.least:,g}" if self.most == math.inf else f"at most {self.most:,g}"


def at_least(value: float) -> Wanted:
    return Wanted(least=value)


def at_most(value: float) -> Wanted:
    return Wanted(most=value)


def exactly(value: float) -> Wanted:
    return Wanted(value, value)


class Source(NamedTuple):
    """Where a figure was published."""

    name: str
    url: str


class Published(NamedTuple):
    """What others have reached; `figure` is empty where only a curve or an argument is published."""

    figure: str
    source: Source

    def __str__(self) -> str:
        return f"{self.figure} ([{self.source.name}]({self.source.url}))".lstrip()


CLEANRL_PPO: Final = Source("CleanRL, ppo", "https://docs.cleanrl.dev/rl-algorithms/ppo/")
CLEANRL_DQN: Final = Source("CleanRL, dqn", "https://docs.cleanrl.dev/rl-algorithms/dqn/")
CLEANRL_C51: Final = Source("CleanRL, c51", "https://docs.cleanrl.dev/rl-algorithms/c51/")
CLEANRL_SAC: Final = Source("CleanRL, sac", "https://docs.cleanrl.dev/rl-algorithms/sac/")
ZOO: Final = Source("SB3's zoo", "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md")
GYMNAX: Final = Source("gymnax, README", "https://github.com/RobertTLange/gymnax#implemented-accelerated-environments")
MINATAR: Final = Source("Young & Tian 2019", "https://arxiv.org/abs/1903.03176")
BSUITE: Final = Source("bsuite", "https://arxiv.org/abs/1908.03568")
QMIX: Final = Source("Rashid et al. 2018", "https://arxiv.org/abs/1803.11485")
JAXMARL: Final = Source("JaxMARL", "https://arxiv.org/abs/2311.10090")
GYMNASIUM: Final = Source("Gymnasium", "https://gymnasium.farama.org/environments/classic_control/cart_pole/")


@dataclass(frozen=True)
class Task:
    """A row: one algorithm on one environment. Settings that it does not give are the tuned ones."""

    name: str
    algorithm: str
    environment: str
    steps: int  # of the environments, at most
    wanted: Wanted
    published: Published
    settings: Mapping[str, Any] = field(default_factory=dict)
    env_settings: Mapping[str, Any] = field(default_factory=dict)
    distribution: str | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)  # of its workers: actors, inference, learners
    envs: int | None = None
    stop_at: float | None = None  # end as soon as 100 episodes reach it: the steps are the figure
    judged_by: Literal["training", "evaluation"] = "training"
    episodes: int = 20  # to play greedily when it is trained
    also_played: Mapping[str, Any] = field(default_factory=dict)  # settings of the environment in as many more episodes
    on: Literal["cpu", "gpu"] = "cpu"
    label: str = ""  # what people call the algorithm, where that is more than its name
    frames: int = 1  # of a step of the environment
    seeds: tuple[int, ...] = (1, 2, 3)

    @property
    def title(self) -> str:
        return self.label or self.algorithm.upper()

    def command(self, seed: int, run_dir: Path) -> list[str]:
        """What `runnel` is told to train it."""
        flags = {"steps": self.steps, "seed": seed, "run-dir": run_dir, "distribution": self.distribution}
        flags |= {**self.numbers, "envs": self.envs, "stop-at-return": self.stop_at}
        words = [f"--{flag}={value}" for flag, value in flags.items() if value is not None]
        for prefix, settings in (("", self.settings), ("env.", self.env_settings)):
            words += [f"--set={prefix}{key}={_text(value)}" for key, value in settings.items()]
        return ["train", self.algorithm, self.environment, *words, "--quiet"]


def _text(value: Any) -> str:
    """As `--set` reads it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)


def _cartpole(name: str, algorithm: str, published: Published, steps: int = 500_000, **more: Any) -> Task:
    return Task(name, algorithm, "CartPole-v1", steps, at_least(475), published, stop_at=475.0, **more)


def _pendulum(algorithm: str, figure: str) -> Task:
    published = Published(f"{figure} at 20,000 steps", ZOO)
    return Task(f"pendulum-{algorithm}", algorithm, "Pendulum-v1", 30_000, at_least(-200), published)


def _memory(memory: str, wanted: Wanted, figure: str, **more: Any) -> Task:
    name, label = f"memory-{memory}", "PPO" if memory == "none" else f"PPO, {memory.upper()}"
    settings = {"memory": memory, "unroll": 32, "learning_rate": 1e-3}
    return Task(
        name, "ppo", "gymnax:MemoryChain-bsuite", 200_000, wanted, Published(figure, BSUITE), settings, envs=64,
        episodes=1_000, label=label, **more,
    )  # fmt: skip


def _minatar(game: str, algorithm: str, least: float, published: Published, **more: Any) -> Task:
    name, environment = f"{game.lower()}-{algorithm}", f"gymnax:{game}-MinAtar"
    return Task(name, algorithm, environment, 10_000_000, at_least(least), published, on="gpu", **more)


def _battle(algorithm: str) -> Task:
    return Task(
        f"smax-3m-{algorithm}", algorithm, "jaxmarl:3m", 10_000_000, at_least(1.8), _WON, stop_at=1.8, episodes=100,
        on="gpu",
    )  # fmt: skip


def _pong(algorithm: str, actors: int, published: Published, settings: Mapping[str, Any] | None = None) -> Task:
    return Task(
        f"pong-{algorithm}", algorithm, "ALE/Pong-v5", 20_000_000, at_least(18), published, settings or {},
        stop_at=18.0, frames=4, distribution="decoupled", numbers={"actors": actors, "inference": 1}, on="gpu",
        episodes=5,
    )  # fmt: skip


_WAITS: Final = {"advantages": "gae"}  # no sample is old: actors wait for the learner, whatever the distribution
_ATARI: Final = {
    **_WAITS,
    "unroll": 64,
    "learning_rate": 5e-4,
    "anneal_steps": 10_000_000,
    "clip": 0.1,
    "entropy_cost": 0.01,
}


def _atari(game: str, least: float, published: Published, settings: Mapping[str, Any], **more: Any) -> Task:
    return Task(
        f"{game.lower()}-10m-ppo", "ppo", f"ALE/{game}-v5", 10_000_000, at_least(least), published,
        {**_ATARI, **settings}, distribution="decoupled", numbers={"actors": 14, "inference": 1}, envs=112, on="gpu",
        frames=4, episodes=100, also_played={"sticky": 0.25}, **more,
    )  # fmt: skip


_CURVE: Final = Published("a curve", MINATAR)
_SOLVED: Final = Published("475 is the reward threshold", GYMNASIUM)


def _spread(algorithm: str) -> Task:
    return Task(
        f"spread-{algorithm}", algorithm, "jaxmarl:MPE_simple_spread_v3", 2_000_000, at_least(-15),
        Published("a curve", JAXMARL), episodes=100,
    )  # fmt: skip


_WON: Final = Published("curves of win rates", JAXMARL)


class Pair(NamedTuple):
    """The same training with actors that wait for the learner, and with actors that run ahead of it."""

    waits: Task
    ahead: Task


def _pair(name: str, algorithm: str, environment: str, steps: int, least: float, published: Published,
          distributions: tuple[str, str], **more: Any) -> Pair:  # fmt: skip
    """Of a fixed number of steps. The one that waits learns by GAE, the other by V-trace, as the plan decides."""
    made = []
    for of, distribution, settings in zip(("waits", "ahead"), distributions, (_WAITS, {}), strict=True):
        label = f"{algorithm.upper()}, actors {'wait' if of == 'waits' else 'run ahead'}"
        made.append(
            Task(
                f"async-{name}-{of}",
                algorithm,
                environment,
                steps,
                at_least(least),
                published,
                settings,
                distribution=distribution,
                label=label,
                **more,
            )
        )
    return Pair(*made)


_FIVE: Final = (1, 2, 3, 4, 5)

PAIRS: Final[tuple[Pair, ...]] = (
    _pair(
        "spread-mappo", "mappo", "jaxmarl:MPE_simple_spread_v3", 2_000_000, -15, Published("a curve", JAXMARL),
        ("coarse", "async"), numbers={"actors": 4}, episodes=100, seeds=_FIVE,
    ),
    _pair(
        "smax-3m-mappo", "mappo", "jaxmarl:3m", 4_000_000, 1.8, _WON, ("coarse", "async"), numbers={"actors": 8},
        episodes=100, seeds=_FIVE, on="gpu",
    ),
    _pair(
        "pong-ppo", "ppo", "ALE/Pong-v5", 4_000_000, 18, Published("20.36 ± 0.20 at 10 M steps", CLEANRL_PPO),
        ("decoupled", "decoupled"), numbers={"actors": 14, "inference": 1}, episodes=5, seeds=(1,), on="gpu", frames=4,
    ),
)  # fmt: skip
"""`python benchmarks/learning.py --only 'async-*'` runs all of them; the page has their differences."""

SECTIONS: Final[dict[str, tuple[Task, ...]]] = {
    "CartPole: steps to a mean return of 475": (
        _cartpole("cartpole-reinforce", "reinforce", _SOLVED),
        _cartpole("cartpole-a2c", "a2c", Published("500 ± 0 at 500,000", ZOO)),
        _cartpole(
            "cartpole-a3c", "a2c", _SOLVED, distribution="central", numbers={"actors": 2}, label="A3C", steps=1_000_000
        ),
        _cartpole("cartpole-ppo", "ppo", Published("490.04 ± 6.12 at 500,000", CLEANRL_PPO)),
        _cartpole("cartpole-impala", "impala", _SOLVED, distribution="async", numbers={"actors": 2}),
        _cartpole("cartpole-dqn", "dqn", Published("488.69 ± 16.11 at 500,000", CLEANRL_DQN)),
        _cartpole(
            "cartpole-dqn-extended", "dqn", Published("488.69 ± 16.11 at 500,000, plain", CLEANRL_DQN),
            settings={"dueling": True, "noisy": True, "prioritised": True, "n_step": 5, "epsilon_end": None},
            label="DQN, dueling, noisy, prioritised, 5-step",
        ),
        _cartpole(
            "cartpole-apex", "dqn", _SOLVED, distribution="async", numbers={"actors": 2}, label="Ape-X DQN",
            settings={"prioritised": True, "n_step": 3, "epsilon_spread": 7.0},
        ),
        _cartpole("cartpole-c51", "c51", Published("498.51 ± 1.77 at 500,000", CLEANRL_C51)),
    ),
    "Pendulum: above -200": (
        _pendulum("ddpg", "-152.1 ± 94.3"),
        _pendulum("td3", "-151.9 ± 90.2"),
        _pendulum("sac", "-157.0 ± 88.7"),
    ),
    "Memory: a bit to be remembered over five steps": (
        _memory("none", at_most(0.3), "0 is chance", judged_by="evaluation"),
        _memory("gru", at_least(0.95), "1 is perfect", stop_at=0.98),
        _memory("lstm", at_least(0.95), "1 is perfect", stop_at=0.98),
    ),
    "MinAtar": (
        _minatar("Breakout", "dqn", 10, _CURVE),
        _minatar("Breakout", "c51", 10, _CURVE),
        _minatar("Breakout", "ppo", 28, Published("28 at 10 M", GYMNAX)),
        _minatar("Asterix", "dqn", 15, _CURVE),
        _minatar("Asterix", "c51", 15, _CURVE),
        _minatar("Asterix", "ppo", 15, Published("15 at 10 M", GYMNAX)),
    ),
    "HalfCheetah: a million steps": (
        Task(
            "halfcheetah-ppo", "ppo", "HalfCheetah-v5", 1_000_000, at_least(1_400),
            Published("1,442.64 ± 46.03 on v4", CLEANRL_PPO),
        ),
        Task(
            "halfcheetah-sac", "sac", "HalfCheetah-v5", 1_000_000, at_least(8_200),
            Published("9,634.89 ± 1,423.73 on v2", CLEANRL_SAC), on="gpu",
        ),
    ),
    "Several agents": (
        _spread("ippo"),
        _spread("mappo"),
        Task(
            "twostep-vdn", "vdn", "docs/examples/two_step.py:TwoStep", 20_000, exactly(7), Published("7", QMIX),
            {"epsilon_end": 1.0}, judged_by="evaluation",
        ),
        Task(
            "twostep-qmix", "qmix", "docs/examples/two_step.py:TwoStep", 20_000, exactly(8), Published("8", QMIX),
            {"epsilon_end": 1.0}, judged_by="evaluation",
        ),
        _battle("ippo"),
        _battle("mappo"),
    ),
    "Pong: 18 points ahead": (
        _pong("ppo", 14, Published("20.36 ± 0.20 at 10 M steps", CLEANRL_PPO), _WAITS),
        _pong("impala", 14, Published("20.99 ± 0.11 at 10 M steps, PPO", ZOO)),
    ),
    "Atari: 10 million steps": (
        _atari("Pong", 20, Published("20.36 ± 0.20", CLEANRL_PPO), {"minibatches": 8}),
        _atari(
            "Breakout", 350, Published("414.66 ± 28.09", CLEANRL_PPO), {"minibatches": 16},
            env_settings={"life_loss": True},
        ),
    ),
    "Actors that wait for the learner, and actors that run ahead": tuple(task for pair in PAIRS for task in pair),
}  # fmt: skip
"""By what the table says above them."""

TASKS: Final[dict[str, Task]] = {task.name: task for tasks in SECTIONS.values() for task in tasks}
