"""Names of environments: what they resolve to, and what is said of those that do not."""

import sys

import gymnasium
import numpy as np
import own_envs
import pytest

from runnel.environment import HostEnvironment, JaxEnvironment, is_traceable
from runnel.envs import FAMILIES, make, schemes
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.errors import UserError


def test_a_plain_name_is_a_gymnasium_id():
    environment = make("CartPole-v1", max_episode_steps=11)
    assert isinstance(environment, HostEnvironment)
    assert (environment.spec.name, environment.spec.max_episode_steps) == ("CartPole-v1", 11)


def test_a_prefix_names_a_family():
    environment = make("gymnax:CartPole-v1", max_steps_in_episode=11)
    assert is_traceable(environment)
    assert (environment.spec.name, environment.spec.max_episode_steps) == ("gymnax:CartPole-v1", 11)


@pytest.mark.parametrize("name", ["own_envs:Drunkard", "own_envs:limited"])
def test_an_own_gymnasium_environment_is_made_afresh_for_every_row(name):
    environment = make(name)
    assert isinstance(environment, HostEnvironment)
    assert environment.spec.name == name
    assert len({id(one.unwrapped) for one in environment.open(range(3), 0).environments}) == 3


def test_an_own_environment_takes_settings():
    assert make("own_envs:limited", steps=5).spec.max_episode_steps == 5


@pytest.mark.parametrize(
    "kwargs", [{"wind": 1}, {"wind": float("inf")}, {"wind": np.float32(1)}, {"seats": None}, {"label": 3}, {"calm": 1}]
)
def test_settings_that_an_annotation_allows(kwargs):
    assert make("own_envs:Sheltered", **kwargs)


def test_an_own_environment_may_be_of_either_kind():
    assert isinstance(make("toys:Corridor"), JaxEnvironment)
    assert isinstance(make("own_envs:host"), GymnasiumEnvironment)
    assert make("own_envs:INSTANCE") is own_envs.INSTANCE


def test_modules_in_the_working_directory_are_found(tmp_path, monkeypatch):
    (tmp_path / "mine_in_cwd.py").write_text("import own_envs\nEnv = own_envs.Drunkard\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry != str(tmp_path)])
    assert make("mine_in_cwd:Env", wind=1.0).spec.name == "mine_in_cwd:Env"


def test_a_file_can_be_named(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import own_envs\ndef make():\n    return own_envs.Drunkard()\n")
    assert make(f"{path}:make").spec.name == f"{path}:make"


def test_a_gymnasium_env_is_not_taken_for_a_jax_environment():
    assert isinstance(own_envs.Drunkard(), JaxEnvironment)  # by its methods' names alone
    assert not is_traceable(make("own_envs:Drunkard"))


@pytest.mark.parametrize(
    ("name", "kwargs", "words"),
    [
        ("CartPol-v1", {}, "did you mean 'CartPole-v1'"),
        ("gymnax:CartPol-v1", {}, "no gymnax environment is called 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("gymnx:CartPole-v1", {}, "did you mean 'gymnax:CartPole-v1'"),
        ("minigrid:MiniGrid-Empty-5x5-v0", {}, "write a function that makes it"),
        ("nowhere.at_all:make", {}, "there is no module 'nowhere.at_all'"),
        ("own_envs:Drunkart", {}, "has no 'Drunkart'; did you mean 'Drunkard'"),
        (
            "own_envs:gives_a_string",
            {},
            "returned a str; expected a gymnasium.Env or VectorEnv, a JaxEnvironment or a Host",
        ),
        ("own_envs:np", {}, "is a module; expected a callable"),
        ("own_envs:Drunkard", {"winds": 1}, "own_envs:Drunkard has no setting 'winds'; did you mean 'wind'"),
        ("own_envs:Drunkard", {"wind": "abc"}, "env.wind=abc: found text 'abc', expected a number"),
        ("own_envs:Drunkard", {"other": 1}, "own_envs:Drunkard has no setting 'other'; known: wind"),
        ("own_envs:limited", {"steps": 2.5}, r"env.steps=2\.5: found 2\.5, expected a whole number"),
        ("own_envs:Unlicensed", {"seats": "all"}, "env.seats=all: found text 'all', expected a whole number or None"),
        (
            "own_envs:Unlicensed",
            {},
            r"making own_envs:Unlicensed raised RuntimeError: no licence found \(own_envs.py, l",
        ),
        (
            "own_envs:Unlicensed",
            {"seats": 2},
            "making own_envs:Unlicensed with seats=2 raised RuntimeError: no licence",
        ),
        ("Unlicensed-v0", {}, r"making Unlicensed-v0 raised RuntimeError: no licence found \(own_envs.py, line \d+\)"),
        ("own_envs:Blind", {}, "own_envs:Blind has no observation_space; set one in `__init__`"),
        ("own_envs:Inert", {}, "own_envs:Inert has no action_space; set one in `__init__`"),
        ("toys:Corridor", {"length": 9}, "toys:Corridor has no setting 'length'; it takes none"),
        ("toys:named", {"name": 1}, "'toys:named' cannot be called with name: missing a required argument: 'id'"),
        ("", {}, "Gymnasium cannot make ''"),
        ("own_envs:", {}, "is no environment name"),
        (":make", {}, "found ':make', expected package.module:name"),
    ],
)
def test_mistakes_are_reported(name, kwargs, words, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Unlicensed-v0", entry_point="own_envs:Unlicensed")
    monkeypatch.setitem(gymnasium.registry, "Unlicensed-v0", spec)
    with pytest.raises(UserError, match=words) as caught:
        make(name, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import not_installed_anywhere", "needs 'not_installed_anywhere', which is not installed"),
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_does_not_import_is_named(tmp_path, monkeypatch, source, words):
    module = f"mine_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=words):
        make(f"{module}:make")


def test_schemes_are_those_that_work():
    known = {scheme.prefix: scheme for scheme in schemes()}
    assert list(known) == [
        "", "gymnax", "brax", "jaxmarl", "pgx", "matrix", "hide", "openspiel", "pettingzoo", "envpool",
        "package.module",
    ]  # fmt: skip
    assert all(scheme.installed for scheme in known.values())


def test_a_scheme_that_is_not_installed_says_what_to_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    known = {scheme.prefix: scheme for scheme in schemes()}
    assert not known["gymnax"].installed
    assert known["gymnax"].summary.endswith("(not installed; run: pip install 'runnel[gymnax]')")
    assert known["package.module"].installed


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.package], ids=lambda family: family.extra)
def test_a_family_that_is_not_installed_says_what_to_run(family, monkeypatch):
    monkeypatch.setitem(sys.modules, family.package, None)
    with pytest.raises(UserError, match=rf"needs '{family.package}', .* run: pip install 'runnel\[{family.extra}\]'"):
        make(f"{family.prefix}any")


def test_registered_after_import_is_found():
    gymnasium.register("Drunk-v0", entry_point="own_envs:Drunkard", max_episode_steps=3)
    try:
        spec = make("Drunk-v0").spec
        assert spec.max_episode_steps == 3
        assert spec.groups["agent"].observation.dtype == np.float32
    finally:
        del gymnasium.registry["Drunk-v0"]
