"""Algorithms by name, without importing what is not asked for."""

import subprocess
import sys

import pytest

from runnel import algorithms
from runnel.config.presets import TUNED, tuned
from runnel.errors import UserError


def test_names_and_classes():
    assert algorithms.names() == [
        "a2c",
        "c51",
        "ddpg",
        "dqn",
        "impala",
        "mappo",
        "ppo",
        "qmix",
        "reinforce",
        "sac",
        "td3",
        "vdn",
    ]
    assert [algorithms.load(name).__name__.lower() for name in algorithms.names()] == algorithms.names()
    assert algorithms.load("PPO") is algorithms.load("ppo")


def test_a_users_own():
    assert algorithms.load("toys:Reinforce").__name__ == "Reinforce"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("poo", "no algorithm 'poo'; did you mean 'ppo'"),
        ("nothing.at.all:Thing", "no module 'nothing.at.all'"),
        ("toys:Reinforcement", "'toys' has no 'Reinforcement'; did you mean 'Reinforce'"),
        ("toys:Corridor", "toys:Corridor is no algorithm"),
    ],
)
def test_unknown_names_offer_near_ones(name, message):
    with pytest.raises(UserError, match=message):
        algorithms.load(name)


def test_listing_imports_no_jax():
    script = (
        "import sys, runnel.algorithms, runnel.config.presets; runnel.algorithms.names(); "
        "assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(("algorithm", "environment"), TUNED)
def test_tuned_settings_are_settings(algorithm, environment):
    settings = tuned(algorithm, environment)
    assert settings.pop("envs") >= 1
    algorithms.load(algorithm)(**settings)


def test_tuned_settings_are_a_copy():
    assert tuned("ppo", "Nowhere-v0") == {}
    tuned("ppo", "CartPole-v1")["envs"] = -1
    assert tuned("PPO", "CartPole-v1").get("envs") != -1
