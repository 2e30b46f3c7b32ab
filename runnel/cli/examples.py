"""Examples of every command, shown at the end of its `--help`. A test reads each as the command line would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

EXAMPLES: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "runnel": (
        ("runnel train ppo CartPole-v1", "train PPO in this process; writes a directory under runs/"),
        (
            "runnel train ppo CartPole-v1 --distribution coarse --actors 4",
            "the same with four actor processes",
        ),
        ("runnel eval runs/mine --video film.mp4", "film an episode of the trained policy"),
        ("runnel doctor", "check this machine"),
        ("runnel help", "list the pages of the documentation"),
    ),
    "train": (
        ("runnel train ppo CartPole-v1 --stop-at-return 475", "stop when it is solved"),
        ("runnel train ppo gymnax:CartPole-v1 --seeds 16", "16 seeds as one program"),
        ("runnel train impala CartPole-v1 --distribution async --actors 4 --steps 1e6", "IMPALA with four actors"),
        ("runnel train dqn CartPole-v1 --set learning_rate=1e-3 hidden=64,64", "with other settings"),
        (
            "runnel train mine:Mine CartPole-v1 --eval-every 50000",
            "your own class in mine.py, with evaluations",
        ),
        ("runnel train ppo --help", "these flags, and the settings of PPO"),
    ),
    "sweep": (
        ("runnel sweep ppo gymnax:CartPole-v1 --over learning_rate=log:1e-4:1e-2 --trials 64", "64 learning rates"),
        ("runnel sweep ppo CartPole-v1 --over unroll=64,128 --sampler grid", "all combinations"),
    ),
    "resume": (
        ("runnel resume runs/mine", "continue where it was interrupted"),
        ("runnel resume runs/mine --steps 2e6", "train further, to a total of two million steps"),
        ("runnel resume runs/mine --distribution coarse --actors 4", "continue with more processes"),
    ),
    "eval": (
        ("runnel eval runs/mine --episodes 100", "the newest policy, over 100 episodes"),
        ("runnel eval runs/mine@best --video best.mp4", "film the best policy"),
    ),
    "versus": (("runnel versus runs/a@best runs/b@best --episodes 2000", "play 2,000 games"),),
    "policies": (
        ("runnel policies runs/mine", "list all stored policies"),
        ("runnel policies runs/mine --version 400 --tag champion", "tag one of them"),
    ),
    "export": (("runnel export runs/mine@best --format onnx --out policy", "for ONNX runtimes"),),
    "plan": (
        ("runnel plan impala CartPole-v1 --distribution decoupled --actors 4 --inference 2", "as text"),
        ("runnel plan ppo CartPole-v1 --distribution coarse --machines a=16+1,b=32", "for two machines"),
    ),
    "plot": (
        ("runnel plot runs/a runs/b --out curves.png", "draw two runs"),
        ("runnel plot runs/a --out success.svg --metric env/is_success", "draw another metric"),
    ),
    "dash": (
        ("runnel dash", "the runs under runs/"),
        ("runnel dash runs/ppo runs/dqn --port 0", "two of them, on a free port"),
    ),
    "list": (
        ("runnel list", "algorithms, distributions and families of environments"),
        ("runnel list ppo", "the settings of PPO, with their defaults"),
        ("runnel list gymnax:", "the environments of gymnax"),
        ("runnel list gymnax:CartPole-v1", "the settings of one of them"),
    ),
    "bench": (("runnel bench", "list the benchmarks of this checkout"),),
    "doctor": (
        ("runnel doctor", "exit status 1 if something is wrong"),
        ("runnel doctor --address 10.0.0.1:6379", "also check that a Ray cluster answers"),
    ),
    "help": (
        ("runnel help faults", "what a run survives"),
        ("runnel help cluster#ports", "one section of a page"),
    ),
    "completion": (
        ("runnel completion bash", 'in ~/.bashrc: eval "$(runnel completion bash)"'),
        ("runnel completion zsh", 'in ~/.zshrc, after compinit: eval "$(runnel completion zsh)"'),
        ("runnel completion fish", "> ~/.config/fish/completions/runnel.fish"),
    ),
}
"""By command, and of all under `runnel`: a command line, and what it is for."""


def text_of(examples: Sequence[tuple[str, str]]) -> str | None:
    """Examples as `--help` shows them."""
    if not examples:
        return None
    return "\n".join(["examples:", *(f"  {command}\n      {about}" for command, about in examples)])
