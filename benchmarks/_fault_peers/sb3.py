"""Stable-Baselines3: PPO over a SubprocVecEnv of four processes, CheckpointCallback, and `PPO.load` to resume."""

from __future__ import annotations

from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

from benchmarks._fault_env import Faulty
from benchmarks._fault_peers._telling import STEPS, Telling, arguments

ENVS, UNROLL = 4, 128
SAVE_EVERY_STEPS = 8 * UNROLL  # of each environment: it cannot be told seconds


class Tell(BaseCallback):
    def __init__(self, directory: Path):
        super().__init__()
        self._telling = Telling(directory)

    def _on_rollout_start(self) -> None:
        finite = all(bool(torch.isfinite(each).all()) for each in self.model.policy.parameters())
        self._telling.tell(self.num_timesteps, finite)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    envs = VecMonitor(SubprocVecEnv([Faulty] * ENVS))
    kept = args.dir / "checkpoints"
    if args.resume:
        newest = max(kept.glob("*.zip"), key=lambda path: int(path.stem.split("_")[-2]))
        model = PPO.load(newest, envs, device="cpu")
    else:
        model = PPO("MlpPolicy", envs, n_steps=UNROLL, batch_size=128, n_epochs=4, device="cpu", seed=0)
    callbacks = [Tell(args.dir), CheckpointCallback(SAVE_EVERY_STEPS, str(kept))]
    model.learn(STEPS, callback=callbacks, reset_num_timesteps=not args.resume)


if __name__ == "__main__":
    main()
