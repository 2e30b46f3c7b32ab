"""RLlib: PPO over two env runners of four environments, the learner in the main process, `from_checkpoint` to resume.

By default it restarts env runners that died. With --tolerant it also restarts environments that raise, and waits less:
20 s for samples where 60 are the default, 10 s for a sign of life where 30 are, 1 s between restarts where 60 are.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import ray
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.tune.registry import register_env

from benchmarks._fault_env import Faulty
from benchmarks._fault_peers._telling import SAVE_EVERY_S, STEPS, Telling, arguments


def config_of(tolerant: bool) -> PPOConfig:
    config = (
        PPOConfig()
        .environment("faulty")
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4, num_cpus_per_env_runner=0.5)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=512, minibatch_size=128, num_epochs=2)
    )
    if tolerant:
        config.env_runners(sample_timeout_s=20.0)
        config.fault_tolerance(
            restart_failed_env_runners=True,
            restart_failed_sub_environments=True,
            delay_between_env_runner_restarts_s=1.0,
            env_runner_health_probe_timeout_s=10.0,
        )
    return config


def finite(algorithm: Algorithm) -> bool:
    weights = algorithm.learner_group.get_weights()
    return all(bool(np.isfinite(each).all()) for module in weights.values() for each in module.values())


def main() -> None:
    args = arguments()
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=str(args.dir / "ray"))
    register_env("faulty", lambda config: Faulty())
    kept: Path = args.dir / "checkpoints"
    if args.resume:
        whole = [path.parent for path in kept.glob("*/rllib_checkpoint.json")]
        algorithm = PPO.from_checkpoint(str(max(whole, key=lambda path: int(path.name))))
    else:
        algorithm = config_of(args.tolerant).build_algo()
    telling, saved_at, steps = Telling(args.dir), time.monotonic(), 0
    while steps < STEPS:
        result = algorithm.train()
        steps = int(result["env_runners"].get("num_env_steps_sampled_lifetime", steps))
        telling.tell(steps, finite(algorithm))
        if time.monotonic() - saved_at > SAVE_EVERY_S:
            algorithm.save_to_path(str(kept / f"{result['training_iteration']:06d}"))
            saved_at = time.monotonic()
    algorithm.stop()


if __name__ == "__main__":
    main()
