"""The names and settings of every family's environments are those that its library has, and `make` takes."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from commands import run_command
from paths import ROOT

from runnel import Box, Discrete, MultiDiscrete, envs
from runnel.cli import environment_lists, environment_names
from runnel.envs import FAMILIES
from runnel.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:JAXopt is no longer maintained:DeprecationWarning")  # Brax imports it

ONE = {
    "ALE/": ("ALE/Pong-v5", "sticky", 0.25),
    "gymnax:": ("gymnax:CartPole-v1", "gravity", 5.0),
    "brax:": ("brax:inverted_pendulum", "backend", "spring"),
    "jaxmarl:": ("jaxmarl:3m", "see_enemy_actions", False),
    "pgx:": ("pgx:tic_tac_toe", "max_steps", 9),
    "matrix:": ("matrix:rock_paper_scissors", "rounds", 3),
    "hide:": ("hide:quadrant", "seekers", 1),
    "openspiel:": ("openspiel:goofspiel", "num_cards", 4),
    "pettingzoo:": ("pettingzoo:mpe2.simple_spread_v3", "N", 2),
    "envpool:": ("envpool:CartPole-v1", "max_episode_steps", 50),
    "": ("CartPole-v1", "sutton_barto_reward", True),
}
"""By prefix: an environment, and a setting of it."""

SLOW = ("gymnax:", "brax:", "jaxmarl:", "pgx:")


@pytest.mark.parametrize(
    "prefix", [pytest.param(prefix, marks=[pytest.mark.slow] if prefix in SLOW else []) for prefix in ONE]
)
def test_a_listed_environment_takes_a_listed_setting(prefix: str) -> None:
    family = next((each for each in FAMILIES if each.prefix == prefix), environment_names.GYMNASIUM)
    if not family.installed:
        pytest.skip(f"{family.package} is not installed")
    name, setting, value = ONE[prefix]
    assert name in environment_names.names(family)
    rows = {row.name: row for row in environment_names.settings(name)}
    assert setting in rows
    assert rows[setting].default != "required"
    assert envs.make(name, **{setting: value}).spec.name
    with pytest.raises(UserError):
        envs.make(name, no_such_setting_at_all=1)
    assert "no_such_setting_at_all" not in rows


def test_every_family_is_listed() -> None:
    assert set(ONE) == {"", *(family.prefix for family in FAMILIES)}
    assert all(
        environment_names.names(family) for family in (*FAMILIES, environment_names.GYMNASIUM) if family.installed
    )


@pytest.mark.slow
def test_names_that_are_read_from_source_are_those_of_the_library() -> None:
    gymnax, pgx, brax = map(pytest.importorskip, ("gymnax", "pgx", "brax.envs"))
    scenarios = pytest.importorskip("jaxmarl.environments.smax.smax_env").MAP_NAME_TO_SCENARIO
    catalog: Any = importlib.import_module("runnel.envs.jaxmarl_catalog")
    known = {
        "gymnax:": gymnax.registered_envs,
        "pgx:": pgx.available_envs(),
        "brax:": brax._envs,
        "jaxmarl:": [*catalog.ENVIRONMENTS, *scenarios],
    }
    for family in FAMILIES:
        if family.prefix in known:
            assert environment_names.names(family) == sorted(f"{family.prefix}{name}" for name in known[family.prefix])


def test_names_are_listed_without_jax() -> None:
    code = (
        "import sys\nfrom runnel.cli import environment_names\nfrom runnel.envs import FAMILIES\n"
        "families = (*FAMILIES, environment_names.GYMNASIUM)\n"
        "print(sum(len(environment_names.names(family)) for family in families))\n"
        "assert 'jax' not in sys.modules or sys.modules['jax'] is None"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout.split()[-1]) > 50


def test_names_are_read_from_a_list_and_by_way_of_other_names() -> None:
    by_other_names = (
        '_IDS = ["Cart-v1", "Pole-v1"]\n_made = {"Cart-v1": object, "Pole-v1": object, "Hidden": object}\n'
        "_registry: dict = {name: _made[name] for name in _IDS}\nregistered_envs = list(_registry)\n"
    )
    for source in ('registered_envs = ["Cart-v1", "Pole-v1"]\n', by_other_names):
        assert environment_names.texts_in(source, "registered_envs") == ["Cart-v1", "Pole-v1"]
    assert environment_names.texts_in("a = list(b)\nb = list(a)\n", "a") == []


def test_a_family_whose_names_cannot_be_read_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = environment_names.IN_SOURCE["matrix:"][0]._replace(name="MOVED")
    monkeypatch.setattr(environment_names, "IN_SOURCE", {"matrix:": (place,)})
    ended = run_command(capsys, "list", "matrix:")
    assert ended.status == 2
    assert "the names of matrix: could not be read" in ended.err


def test_list_shows_families_and_environments(capsys: pytest.CaptureFixture[str]) -> None:
    def runnel(*words: str) -> Any:
        return run_command(capsys, "list", *words)

    assert "  matrix:prisoners_dilemma\n" in runnel("matrix:").out
    assert '"matrix:prisoners_dilemma"' in runnel("matrix", "--json").out
    assert "  CartPole-v1\n" in runnel("gymnasium").out
    shown = runnel("CartPole-v1").out
    assert "sutton_barto_reward=false" in shown
    assert "max_episode_steps=500" in shown
    assert "render_mode" not in shown
    assert '"name": "frame_stack"' in runnel("CartPole-v1", "--json").out
    assert "name=required" in runnel("toys:named").out
    assert "learning_rate=0.01" in runnel("toys:Reinforce").out
    assert "did you mean 'gymnax:'" in runnel("gymnx:").err
    assert "did you mean 'matrix:rock_paper_scissors'" in runnel("matrix:rock_paper").err
    assert runnel("CartPol-v1").status == 2
    assert "did you mean 'CartPole-v1'" in runnel("CartPol-v1").err
    assert "did you mean 'ppo'" in runnel("pppo").err


def test_list_shows_spaces_and_tuned_settings_and_what_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_command(capsys, "list", "CartPole-v1").out
    assert "  observation  Box[4] float32\n  action       Discrete(2)\n  episode      at most 500 steps\n" in shown
    assert re.search(r"^  tuned for    a2c, .*ppo.*: `runnel list a2c` has the settings$", shown, re.M)
    assert "learning_seats" not in shown
    assert "lineups" not in shown
    assert "If True the reward function matches" in shown
    game = run_command(capsys, "list", "matrix:prisoners_dilemma").out
    assert "group        player, 2 agents" in game
    assert "learning_seats=all" in game
    assert "lineups" not in game
    found = json.loads(run_command(capsys, "list", "CartPole-v1", "--json").out)
    assert found["groups"]["agent"] == {"agents": 1, "observation": "Box[4] float32", "action": "Discrete(2)"}
    assert found["tuned"]["ppo"]["unroll"] == 128
    unknown = run_command(capsys, "list", "toys:named").out  # needs a setting to be made
    assert "  spaces       not known: " in unknown


def test_spaces_in_words() -> None:
    reals = Box((2, 3), np.dtype(np.float32), -1, 1)
    parts = {"action_mask": Box((2,), np.dtype(bool), 0, 1), "place": (Discrete(3), MultiDiscrete((2, 4)))}
    assert environment_lists.space_words(reals) == "Box[2, 3] float32, from -1 to 1"
    assert environment_lists.space_words(parts) == "action_mask: Box[2] bool; place: (Discrete(3); MultiDiscrete(2, 4))"


def test_a_docstring_describes_a_parameter() -> None:
    text = """An environment.

    | parameter    | type      | default | description |
    | `reset_noise` | **float** | `0.1`   | Scale of [noise](https://x.y) (see _Start_ section) |

    `is_slippery=True`: If true the player will move
    in the intended direction. Else it is random.

    Args:
        length (int): How long it is, in metres
        other: See above
    """
    said = {name: environment_names.documented(text, name) for name in ("reset_noise", "is_slippery", "length", "no")}
    assert said == {
        "reset_noise": "Scale of noise", "length": "How long it is, in metres", "no": "",
        "is_slippery": "If true the player will move in the intended direction",
    }  # fmt: skip
