"""Stable-Baselines3's PPO on Gymnasium CartPole-v1: the reference side of the inline benchmark.

Run it with an interpreter that has stable-baselines3; it imports nothing of runnel. It prints one
JSON line.

    /path/to/sb3/bin/python benchmarks/reference/sb3_ppo.py --steps 100000 --seed 0
"""

import argparse
import json
import platform
import time
from importlib.metadata import version

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

ENVS, STEPS_PER_UNROLL, MINIBATCH, EPOCHS = 8, 256, 256, 4
ITERATION = ENVS * STEPS_PER_UNROLL


class IterationClock(BaseCallback):
    """Notes when each iteration (unroll, then learning) begins; there is no hook where one ends."""

    def __init__(self) -> None:
        super().__init__()
        self.starts_s: list[float] = []

    def _on_rollout_start(self) -> None:
        self.starts_s.append(time.perf_counter())

    def _on_step(self) -> bool:
        return True


def run(steps: int, seed: int) -> dict[str, float]:
    """Trains for `steps`, rounded up to whole iterations as Stable-Baselines3 does."""
    envs = make_vec_env("CartPole-v1", n_envs=ENVS, seed=seed, vec_env_cls=DummyVecEnv)
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=STEPS_PER_UNROLL,
        batch_size=MINIBATCH,
        n_epochs=EPOCHS,
        seed=seed,
        device="cpu",
    )
    clock = IterationClock()
    start_s = time.perf_counter()
    model.learn(steps, callback=clock)
    end_s = time.perf_counter()
    returns = [episode["r"] for episode in model.ep_info_buffer]  # the last 100 episodes
    done_steps = model.num_timesteps
    return {
        "env_steps": done_steps,
        "steps_per_second": (done_steps - ITERATION) / (end_s - clock.starts_s[1]),
        "steps_per_second_with_first": done_steps / (end_s - start_s),
        "mean_return": sum(returns) / len(returns),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time Stable-Baselines3's PPO on CartPole-v1.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads; 1 was the fastest on 2 cores")
    args = parser.parse_args()
    if args.steps <= ITERATION:
        parser.error(f"--steps {args.steps}: more than one iteration ({ITERATION}) is needed to time")
    torch.set_num_threads(args.threads)
    packages = ("stable-baselines3", "torch", "gymnasium", "numpy")
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    result = run(args.steps, args.seed)
    print(json.dumps({**vars(args), **result, "versions": versions}))


if __name__ == "__main__":
    main()
