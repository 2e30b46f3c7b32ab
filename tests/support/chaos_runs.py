"""The runs that are broken, and how: for the suite and for the benchmark of recovery times."""

from __future__ import annotations

from pathlib import Path

from chaos import Chaos

from runnel.recording.metrics import read_metrics

RUNS = {  # command, workers, the return to be reached
    "coarse": (["ppo", "CartPole-v1", "--actors", "2"], ["actor-0", "actor-1", "learner"], 475),
    "fine": (["ppo", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "learner"], 475),
    "environments": (
        ["ppo", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "agent"], 475,
    ),
    "replicated": (["ppo", "CartPole-v1", "--learners", "2"], ["replica-0", "replica-1"], 475),
    "central": (["a2c", "CartPole-v1", "--actors", "2"], ["worker-0", "worker-1", "server"], 400),
    "async": (["impala", "CartPole-v1", "--actors", "2"], ["actor-0", "actor-1", "learner"], 400),
    "decoupled": (
        ["impala", "CartPole-v1", "--actors", "2"], ["environment-0", "environment-1", "inference", "learner"],
        400,
    ),
}  # fmt: skip


def chaos(name: str, run_dir: Path, kills: int, steps: int | None = None) -> Chaos:
    """A run of so many steps or, where that is not said, one that ends soon after it was broken so many times."""
    command, workers, _ = RUNS[name]
    endless = 10**9
    flags = ["--distribution", name, "--steps", str(steps or endless), "--run-dir", str(run_dir), "--quiet"]
    limits = ["--seed", "1", "--restarts", "100000", "--hang-after", "5", "--checkpoint-every", "2"]
    return Chaos(["train", *command, *flags, *limits], run_dir, workers, seed=7, most=kills, endless=steps is None)


def best_return(run_dir: Path) -> float:
    """The best mean return there was: some algorithms forget again what they have learnt, undisturbed too."""
    return max(record["mean_return"] or -1e9 for record in read_metrics(run_dir))
