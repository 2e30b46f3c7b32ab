"""Training from a file: the configuration of a run trains the same again, and a stranger's does nothing unasked."""

import contextlib
import importlib
import json
import os
import socket
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import run_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import SUPPORT
from toys import Reinforce

import runnel
from runnel.algorithms.ppo import PPO
from runnel.algorithms.reinforce import Reinforce as OwnReinforce
from runnel.cli import arguments
from runnel.config.run_config import FORMAT, KEYS
from runnel.deprecated import Renamed
from runnel.distributions.coarse import Coarse
from runnel.distributions.inline import Inline
from runnel.errors import UserError
from runnel.execution import config_file
from runnel.execution.training import resolve
from runnel.user_code.named_modules import NamedModules

SMALL = PPO(unroll=8, hidden=(4,), epochs=1, minibatches=1)
PLAIN = {
    "algorithm": {"class": "runnel.algorithms.reinforce:Reinforce", "settings": {"unroll": 8, "hidden": [4]}},
    "environment": {"name": "CartPole-v1", "settings": {}},
    "distribution": {"class": "runnel.distributions.inline:Inline", "settings": {}},
    "envs": 2, "steps": 64, "seed": 5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A finder of the test's own, and none of the modules that it serves after it."""
    monkeypatch.setattr(sys, "meta_path", [each for each in sys.meta_path if not isinstance(each, NamedModules)])
    yield
    for name, module in list(sys.modules.items()):
        if "pytest-of" in str(getattr(module, "__file__", None)):
            del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The user's working directory."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    importlib.invalidate_caches()
    return directory


def written(path, **changes):
    path.write_text(json.dumps({**PLAIN, **changes}))
    return path


def everything(run):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


# The same again


@pytest.mark.parametrize(("environment", "distribution"), [("CartPole-v1", "inline"), ("gymnax:CartPole-v1", "fused")])
def test_the_configuration_of_a_run_trains_the_same_again(environment, distribution, tmp_path):
    asked = dict(envs=4, steps=256, seed=9, env_settings={"frame_stack": 2}, quiet=True)
    first = runnel.train(SMALL, environment, distribution, run_dir=tmp_path / "first", **asked)
    found = config_file.arguments(tmp_path / "first")
    assert config_file.arguments(tmp_path / "first" / "config.json") == found
    again = runnel.train(**found, run_dir=tmp_path / "again", quiet=True)
    assert everything(again) == everything(first)
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "first" / "config.json").read_text()


def test_a_run_of_an_older_version_is_a_file_to_train_from(tmp_path):
    with pytest.warns(Renamed, match="Fine"):  # one of its settings has another name now
        found = config_file.arguments(SUPPORT / "run_of_0_1_0")
    assert isinstance(found["algorithm"], OwnReinforce)
    assert (found["environment"], found["envs"], found["seed"], found["steps"]) == ("CartPole-v1", 4, 3, 600)
    assert type(found["distribution"]).__name__ == "Fine"


def test_some_of_the_keys_are_enough(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"environment": {"name": "CartPole-v1"}, "steps": 1e3, "envs": None}))
    assert config_file.arguments(file, algorithm="ppo") == {
        "algorithm": "ppo", "environment": "CartPole-v1", "env_settings": {}, "steps": 1000, "envs": None,
    }  # fmt: skip


def test_a_link_that_the_user_names_is_followed(tmp_path):
    written(tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert config_file.arguments(tmp_path / "link.json")["seed"] == 5


# What is given beside it


def test_the_same_algorithm_keeps_the_settings_of_the_file_and_another_drops_them(tmp_path):
    file, said = written(tmp_path / "a.json", environment={"name": "CartPole-v1", "settings": {"x": 1}}), []
    kept = config_file.arguments(file, algorithm="reinforce", environment="CartPole-v1", note=said.append)
    assert kept["algorithm"] == OwnReinforce(unroll=8, hidden=(4,))
    assert kept["env_settings"] == {"x": 1}
    assert not said
    other = config_file.arguments(file, algorithm="dqn", environment="Acrobot-v1", note=said.append)
    assert (other["algorithm"], other["environment"]) == ("dqn", "Acrobot-v1")
    assert "env_settings" not in other
    assert said == [
        f"the settings of Reinforce in {file} are not used: the algorithm is dqn",
        f"the settings of CartPole-v1 in {file} are not used: the environment is Acrobot-v1",
    ]


def test_a_distribution_beside_it(tmp_path):
    coarse = {"class": "runnel.distributions.coarse:Coarse", "settings": {"actors": 3}}
    file = written(tmp_path / "a.json", distribution=coarse)
    assert config_file.arguments(file)["distribution"] == Coarse(3)
    assert config_file.arguments(file, distribution="coarse")["distribution"] == Coarse(3)
    assert config_file.arguments(file, distribution="inline")["distribution"] == "inline"


# On the command line


def test_flags_override_a_file(here, capsys):
    written(here / "a.json", stop_at_return=400.0, restarts=3)
    flags = (
        "--seed 1 --steps 32 --envs 4 --set unroll=4 env.frame_stack=2 --distribution coarse --actors 2 --on-nan skip"
    )
    status, out, err = run_command(capsys, "train", "--config", "a.json", *flags.split(), "--dry-run")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["algorithm"]["settings"]["unroll"] == 4
    assert found["algorithm"]["settings"]["hidden"] == [4]
    assert found["environment"] == {"name": "CartPole-v1", "settings": {"frame_stack": 2}}
    assert found["distribution"] == {"class": "runnel.distributions.coarse:Coarse", "settings": {"actors": 2}}
    assert [found[key] for key in ("seed", "steps", "envs", "on_nan")] == [1, 32, 4, "skip"]
    assert [found[key] for key in ("stop_at_return", "restarts", "wandb")] == [400.0, 3, False]
    assert os.listdir() == ["a.json"]


def test_none_takes_back_what_a_file_says(here, capsys):
    optional = {
        "stop_at_return": 400.0, "eval_every": 32, "eval_seed": 3, "eval_workers": 1, "eval_metric": "length",
        "stop_at_eval_return": 9.0, "keep_every": 32, "keep_every_s": 5.0,
    }  # fmt: skip
    written(here / "a.json", **optional)
    flags = [word for name in optional for word in (arguments.FLAG_OF.get(name, f"--{name.replace('_', '-')}"), "none")]
    status, out, err = run_command(capsys, "train", "--config", "a.json", *flags, "--dry-run")
    assert (status, err) == (0, "")
    assert {name: json.loads(out).get(name) for name in optional} == dict.fromkeys(optional)
    status, out, _ = run_command(capsys, "train", "--config", "a.json", "--stop-at-return", "None", "--dry-run")
    assert {name: json.loads(out).get(name) for name in optional} == {**optional, "stop_at_return": None}
    status, _, err = run_command(capsys, "train", "--config", "a.json", "--steps", "none", "--dry-run")
    assert (status, "found 'none', expected a whole number" in err) == (2, True)


def test_numbers_change_the_distribution_of_a_file(here, capsys):
    coarse = {"class": "runnel.distributions.coarse:Coarse", "settings": {"actors": 3}}
    written(here / "a.json", distribution=coarse, envs=4)
    for flags in (["--actors", "4"], ["--set", "distribution.actors=4"], ["--distribution", "coarse", "--actors", "4"]):
        status, out, _ = run_command(capsys, "train", "--config", "a.json", "--dry-run", *flags)
        assert (status, json.loads(out)["distribution"]["settings"]) == (0, {"actors": 4})
    status, _, err = run_command(capsys, "train", "--config", "a.json", "--dry-run", "--learners", "4")
    assert (status, "distribution coarse has no --learners" in err) == (2, True)


def test_a_dry_run_prints_what_config_json_would_hold_and_leaves_nothing(here, capsys):
    words = ["train", "reinforce", "CartPole-v1", "--envs", "2", "--steps", "16", "--set", "hidden=4", "unroll=8"]
    status, out, err = run_command(capsys, *words, "--run-dir", "run", "--dry-run")
    assert (status, err) == (0, "")
    assert not os.listdir()
    assert run_command(capsys, *words, "--run-dir", "run", "--quiet")[0] == 0
    assert out == Path("run/config.json").read_text()
    Path("dry.json").write_text(out)
    status, again, err = run_command(capsys, "train", "--config", "dry.json", "--dry-run")
    assert (status, again, err) == (0, out, "")
    # A directory that holds a run is found before training begins.
    status, _, err = run_command(capsys, *words, "--run-dir", "run", "--dry-run")
    assert (status, "run already holds a run" in err) == (2, True)


@pytest.mark.parametrize("launcher", ["ray", "mine:launch"])
def test_a_dry_run_for_other_machines_than_this_one_is_refused(launcher, here, capsys):
    words = ["train", "reinforce", "CartPole-v1", "--distribution", "coarse", "--launcher", launcher, "--dry-run"]
    ended = status, out, err = run_command(capsys, *words)
    assert (status, out, len(ended.said)) == (2, "", 1)
    assert f"found --dry-run and --launcher {launcher}; --dry-run plans for this machine" in err
    assert not os.listdir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("reinforce CartPole-v1 --distribution coarse --actors 3 --envs 4", "--envs 4 does not divide over 3 actors"),
        ("reinforce CartPole-v1 --distribution fused", "host environment"),
        ("reinforce CartPol-v1", "did you mean 'CartPole-v1'"),
        ("reinforce Pendulum-v1 --set unrol=3", "did you mean 'unroll'"),
    ],
)
def test_a_dry_run_finds_mistakes(words, message, here, capsys):
    status, out, err = run_command(capsys, "train", *words.split(), "--dry-run")
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert not os.listdir()


def test_a_dry_run_makes_no_key(here, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["train", "toys:Reinforce", "toys:Corridor", "--dry-run"]
    status, out, _ = run_command(capsys, *words)
    assert (status, "signature" in json.loads(out)["code"]) == (0, False)
    assert not (tmp_path / "state").exists()
    asked = dict(envs=2, steps=16, quiet=True)
    runnel.train(Reinforce(), "toys:Corridor", "inline", run_dir=tmp_path / "run", **asked)  # which makes one
    assert "signature" in resolve(Reinforce(), "toys:Corridor", "inline", **asked)["code"]


def test_names_may_stand_anywhere(here, capsys):
    written(here / "a.json")
    for words in ("dqn --config a.json Acrobot-v1", "--config a.json dqn Acrobot-v1", "dqn Acrobot-v1 --config a.json"):
        status, out, _ = run_command(capsys, "train", *words.split(), "--dry-run", "--quiet")
        found = json.loads(out)
        assert status == 0
        assert (found["algorithm"]["class"], found["environment"]["name"]) == (
            "runnel.algorithms.dqn:DQN",
            "Acrobot-v1",
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"stesp": 3}', "found 'stesp', which no configuration has; did you mean 'steps'?"),
        ('{"steps": "many"}', "'steps' is 'many', expected a whole number"),
        ('{"steps": 0}', "'steps' is '0', expected a whole number from 1 to 2**62"),
        ('{"seed": true}', "'seed' is 'True', expected a whole number"),
        ('{"on_nan": "panic"}', "'on_nan' is 'panic', expected 'stop', 'skip' or 'rollback'"),
        ('{"wandb": "yes"}', "'wandb' is 'yes', expected True or False"),
        ('{"run_dir": "x"}', "found 'run_dir', which belongs to one process and is not taken from a file; pass --run"),
        ('{"launcher": "a:b"}', "found 'launcher', which belongs to one process and is not taken from a file; pass --"),
        ('{"settings": {}}', "found 'settings'; expected 'settings' inside 'algorithm'"),
        ('{"algorithm": "ppo"}', "'algorithm' is 'ppo', expected {\"class\": ..., \"settings\": {...}}"),
        ('{"algorithm": {"clas": "a:B"}}', "found 'clas' in 'algorithm'; did you mean 'class'?"),
        ('{"algorithm": {"settings": {}}}', "'algorithm' has no 'class', which says what it is"),
        ('{"environment": {"name": "x", "settings": [1]}}', "'settings' in 'environment' is '[1]', expected an object"),
        ('{"environment": {"name": 3}}', "'name' in 'environment' is '3', expected text"),
        ('{"steps": 5}', "a.json names no algorithm; name one: runnel train --config a.json ALGORITHM ENVIRONMENT"),
        (f'{{"format": {FORMAT + 1}, "runnel_version": "9.0"}}', f"found format {FORMAT + 1}, written by Runnel 9.0"),
        ("[1, 2]", "a.json: found a list, expected an object with keys of a run's config.json"),
        ("steps: 5", "a.json cannot be read: Expecting value"),
        ("", "a.json cannot be read: Expecting value"),
        ('{"steps": NaN}', "a.json cannot be read: found NaN, expected a finite number"),
        ('{"steps": 1' + "0" * 5000 + "}", "a.json cannot be read: found an integer of 5,001 digits"),
        ("[" * 100_000, "a.json cannot be read: maximum recursion depth exceeded"),
        ("\x00\xff", "a.json cannot be read: "),
    ],
)  # fmt: skip
def test_a_file_that_is_no_configuration_is_refused_in_a_line(content, words, here, capsys):
    (here / "a.json").write_bytes(content.encode("latin-1"))
    status, out, err = run_command(capsys, "train", "--config", "a.json", "--run-dir", "run")
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) <= 2
    assert os.listdir() == ["a.json"]


@pytest.mark.parametrize(
    ("hazard", "words"),
    [
        ("pipe", "is a named pipe, expected a plain file"),
        ("socket", "is a socket, expected a plain file"),
        ("device", "is a device, expected a plain file"),
        ("loop", "is a link, expected a plain file"),
        ("dangling", "there is no file a.json"),
        ("sparse", "it has 1,099,511,627,776 bytes, which is more than a run writes"),
        ("directory", "a.json holds no run: there is no config.json in it"),
        ("directory with a link", "is a link, expected a plain file"),
    ],
)
def test_what_is_no_plain_file_is_refused(hazard, words, here, capsys):
    path, outside = here / "a.json", written(here.parent / "outside.json")
    match hazard:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
                bound.bind(os.path.relpath(path))
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(here / "nowhere")
        case "sparse":
            with path.open("w") as file:
                file.truncate(1 << 40)
        case _:
            path.mkdir()
            if "link" in hazard:
                (path / "config.json").symlink_to(outside)
    status, out, err = run_command(capsys, "train", "--config", "a.json")
    assert (status, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) <= 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(key=st.sampled_from(KEYS), value=JSON, inner=st.sampled_from(["", "class", "name", "settings"]))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_is_taken_or_refused_in_words(key, value, inner, tmp_path):
    part = PLAIN.get(key)
    changed = {**part, inner: value} if inner and isinstance(part, dict) else value
    file = written(tmp_path / "any.json", **{key: changed})
    with contextlib.suppress(UserError):
        found = config_file.arguments(file)
        assert found["environment"]
        assert isinstance(found["distribution"], Inline)


# Whose code


EVIL = (
    "open({mark!r}, 'w').close()\nimport toys\nclass Evil(toys.Reinforce): pass\ndef world(): return toys.Corridor()\n"
)


@pytest.fixture
def evil(here):
    """A module of a stranger's in the working directory, and whether it was executed."""
    mark = here.parent / "executed"
    (here / "evil_module.py").write_text(EVIL.format(mark=str(mark)))
    importlib.invalidate_caches()
    return mark


NAMED = [
    {"algorithm": {"class": "evil_module:Evil", "settings": {}}},
    {"environment": {"name": "evil_module:world", "settings": {}}},
    {"distribution": {"class": "evil_module:Evil", "settings": {}}},
    {"algorithm": {"class": "runnel.algorithms.ppo:PPO", "settings": {"network": "evil_module:Evil"}}},
    {"algorithm": {"class": "runnel.algorithms.ppo:PPO", "settings": {"network": {"object": "evil_module:Evil"}}}},
    {"environment": {"name": "pettingzoo:evil_module", "settings": {}}},
    {"environment": {"name": "CartPole-v1", "settings": {"path": "evil.pkl"}}},
]


@pytest.mark.parametrize("changes", NAMED)
def test_code_that_a_file_names_is_not_executed_unasked(changes, evil, here, capsys):
    written(here / "a.json", **changes)
    status, out, err = run_command(capsys, "train", "--config", "a.json", "--run-dir", "run")
    assert (status, out) == (2, "")
    assert "a.json names code that would be executed, and it is not signed" in err
    assert not evil.exists()
    assert "run" not in os.listdir()


def test_a_script_in_a_run_directory_is_never_executed(here, capsys, tmp_path):
    runnel.train(SMALL, "CartPole-v1", envs=2, steps=16, run_dir="run", quiet=True)
    mark = tmp_path / "executed"
    script = Path("run/evil_script.py").absolute()
    script.write_text(EVIL.format(mark=str(mark)))
    named = {"algorithm": {"class": f"{script}:Evil", "settings": {}}}
    for file in (written(Path("run/config.json"), **named), written(Path("run/other.json"), **named), Path("run")):
        status, _, err = run_command(
            capsys, "train", "--config", file, "--trust", f"{script}:Evil", "--run-dir", "again"
        )
        assert status == 2
        assert "lies in the run's own directory: a run is data, and nothing in it is executed" in err
    assert not mark.exists()


def test_code_is_trusted_by_name(evil, here, capsys):
    written(here / "a.json", **NAMED[0])
    status, _, err = run_command(capsys, "train", "--config", "a.json", "--dry-run", "--trust", "evil_module:Other")
    assert (status, evil.exists()) == (2, False)
    assert "--trust evil_module:Other: a.json does not name it; what needs trust there: evil_module:Evil" in err
    status, out, _ = run_command(capsys, "train", "--config", "a.json", "--dry-run", "--trust", "evil_module:Evil")
    assert (status, evil.exists()) == (0, True)
    assert json.loads(out)["algorithm"]["class"] == "evil_module:Evil"


def test_what_the_user_names_needs_no_trust_and_its_settings_do(evil, here, capsys):
    """Named on the command line it would be imported without a file, too."""
    written(here / "a.json", **NAMED[0])
    assert run_command(capsys, "train", "evil_module:Evil", "--config", "a.json", "--dry-run")[0] == 0
    written(here / "a.json", **NAMED[3])
    status, _, err = run_command(capsys, "train", "ppo", "--config", "a.json", "--dry-run")
    assert (status, "names code that would be executed" in err) == (2, True)


def test_code_of_a_part_that_is_replaced_is_not_asked_about(evil, here, capsys):
    written(here / "a.json", **NAMED[0])
    assert run_command(capsys, "train", "ppo", "--config", "a.json", "--dry-run", "--quiet")[0] == 0
    assert not evil.exists()


def test_a_run_of_ones_own_code_is_trained_again_from_its_configuration(here, capsys):
    (here / "mine_again.py").write_text("import toys\nclass Mine(toys.Reinforce): pass\n")
    importlib.invalidate_caches()
    words = ["--envs", "2", "--steps", "16", "--quiet"]
    assert run_command(capsys, "train", "mine_again:Mine", "toys:Corridor", "--run-dir", "run", *words)[0] == 0
    assert run_command(capsys, "train", "--config", "run", "--run-dir", "again", "--quiet")[0] == 0
    # Moved elsewhere and changed, it counts as a stranger's.
    changed = json.loads(Path("run/config.json").read_text())
    changed["algorithm"]["settings"]["unroll"] = 4
    Path("changed.json").write_text(json.dumps(changed))
    status, _, err = run_command(capsys, "train", "--config", "changed.json", "--dry-run")
    assert status == 2
    assert "changed.json names code that would be executed, and it was changed after it was signed" in err


def test_a_file_publishes_nothing_unasked(here, capsys, monkeypatch):
    monkeypatch.setattr("runnel.execution.training.check_wandb", lambda: None)
    written(here / "a.json", wandb=True)
    status, _, err = run_command(capsys, "train", "--config", "a.json", "--dry-run")
    assert (status, "it would be shown at Weights & Biases, with your account" in err) == (2, True)
    for flags, shown in ((["--no-wandb"], False), (["--wandb"], True), (["--trust", "wandb"], True)):
        status, out, _ = run_command(capsys, "train", "--config", "a.json", "--dry-run", *flags)
        assert (status, json.loads(out)["wandb"]) == (0, shown)


def test_what_no_other_process_can_import_must_be_named(tmp_path, capsys):
    runnel.train(
        SMALL, lambda: __import__("gymnasium").make("CartPole-v1"), envs=2, steps=16, run_dir=tmp_path, quiet=True
    )
    with pytest.raises(
        UserError, match="names the environment lambda, which no other process can import; name one: run"
    ):
        config_file.arguments(tmp_path)
    assert config_file.arguments(tmp_path, environment="CartPole-v1")["environment"] == "CartPole-v1"
