"""The runs that are broken, and how: for the suite and for the benchmark of recovery times."""

from __future__ import annotations

from pathlib import Path

from chaos import Chaos

RUNS = {  # command, workers, steps that take about ninety seconds undisturbed on two cores, the return to be reached
    "coarse": (["ppo", "CartPole-v1", "--actors", "2"], ["actor-0", "actor-1", "learner"], 1_200_000, 475),
    "fine": (["ppo", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "learner"], 1_200_000, 475),
    "environments": (
        ["ppo", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "agent"], 1_200_000, 475,
    ),
    "replicated": (["ppo", "CartPole-v1", "--learners", "2"], ["replica-0", "replica-1"], 300_000, 475),
    "central": (["a2c", "CartPole-v1", "--actors", "2"], ["worker-0", "worker-1", "server"], 1_200_000, 400),
    "async": (["impala", "CartPole-v1", "--actors", "2"], ["actor-0", "actor-1", "learner"], 3_000_000, 400),
    "decoupled": (
        ["impala", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "inference", "learner"],
        2_000_000, 400,
    ),
}  # fmt: skip


def chaos(name: str, run_dir: Path, kills: int, steps: int) -> Chaos:
    command, workers, _, _ = RUNS[name]
    flags = ["--distribution", name, "--steps", str(steps), "--run-dir", str(run_dir), "--quiet", "--seed", "1"]
    limits = ["--restarts", "100000", "--hang-after", "5", "--checkpoint-every", "2"]
    return Chaos(["train", *command, *flags, *limits], run_dir, workers, seed=7, most=kills)
