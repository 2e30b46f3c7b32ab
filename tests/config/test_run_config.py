"""One list of what a run is asked for: the keywords of `train`, the flags of `runnel train`, and config.json."""

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import UserError
from runnel.cli import arguments
from runnel.config import run_config, setting_docs, settings
from runnel.config.run_config import FORMAT, STORED, RunConfig
from runnel.execution.training import resume, train

FIELDS = [field.name for field in dataclasses.fields(RunConfig)]

FLAGS = {"checkpoint_every_s": "--checkpoint-every", "hang_after_s": "--hang-after", "settings": "--set",
         "env_settings": "--set", "eval_env_settings": "--set", "keep_every_s": "--keep-every-seconds",
         "sinks": "--sink"}  # fmt: skip
"""Those that are not called as the field is."""

PYTHON_ONLY = {"transport", "on_update", "on_evaluation", "on_checkpoint", "callback_every_s", "callback_every"}


def test_train_has_a_keyword_for_each_field_with_its_type_and_default() -> None:
    keywords = {
        name: parameter
        for name, parameter in inspect.signature(train).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert list(keywords) == FIELDS
    for field in dataclasses.fields(RunConfig):
        assert keywords[field.name].default == field.default, field.name
        assert keywords[field.name].annotation == field.type, field.name


def test_resume_has_the_same_default_where_config_json_keeps_none() -> None:
    keywords = inspect.signature(resume).parameters
    shared = [field for field in dataclasses.fields(RunConfig) if field.name in keywords and field.name not in STORED]
    assert {field.name for field in shared} >= {"callback_every_s", "quiet", "sinks"}
    assert {field.name: keywords[field.name].default for field in shared} == {f.name: f.default for f in shared}


def test_every_field_is_described() -> None:
    assert all(row.doc for row in setting_docs.describe(RunConfig))


def test_every_field_has_a_flag_or_is_for_python_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["train", "--help"])
    words = capsys.readouterr().out.split()
    for name in FIELDS:
        flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
        assert (flag in words) != (name in PYTHON_ONLY), name


def test_what_is_stored_is_read_again() -> None:
    asked = RunConfig(
        envs=64, steps=1000, seed=7, run_dir="there", stop_at_return=1.5, launcher="ray", address="host:1", quiet=True,
        wandb=True, checkpoint_every_s=5.0, restarts=3, hang_after_s=9.0, on_nan="skip", settings={"a": 1},
        env_settings={}, eval_every=100, eval_episodes=3, eval_seed=9, eval_env_settings={"b": "c"}, eval_workers=2,
        eval_wait=True, eval_explore=True, eval_metric="min:length", stop_at_eval_return=4.5, keep_every=50,
        keep_every_s=2.5, keep_best=4, callback_every_s=0.5, init_from="there@best", frozen={"prey": "elsewhere"},
        precision="bf16",
    )  # fmt: skip
    assert all(getattr(asked, name) != getattr(RunConfig(), name) for name in STORED)
    parts: dict[str, Any] = {
        "algorithm": {"class": "a:A", "settings": {}},
        "environment": {"name": "e", "settings": {}},
        "distribution": {"class": "d:D", "settings": {}},
    }
    written = json.loads(json.dumps(run_config.to_json(asked, parts, {"names": {}})))
    assert {name: written[name] for name in parts} == parts
    assert (written["runnel_version"], written["format"], written["code"]) == (
        runnel.__version__,
        FORMAT,
        {"names": {}},
    )
    run_config.check_json("config.json", written)
    run_config.check_complete("config.json", written)
    again = run_config.from_json(written)
    assert {name: getattr(again, name) for name in STORED} == {name: getattr(asked, name) for name in STORED}
    assert (again.run_dir, again.launcher, again.settings) == (None, "local", None)  # of one process alone


def test_what_an_older_version_did_not_store_has_its_default() -> None:
    assert run_config.from_json({"steps": 5, "seed": 1}) == RunConfig(steps=5, seed=1)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"envs": 0}, "envs=0: found 0, expected a whole number from 1 to 16777216"),
        ({"steps": 0}, "steps=0: found 0, expected a whole number from 1 to 2**62"),
        ({"seed": 2**32}, "seed=4294967296: found 4294967296, expected a whole number from 0 to 2**32 - 1"),
        ({"hang_after_s": 0.0}, "hang_after_s=0.0: found 0.0, expected more than 0 seconds"),
        ({"checkpoint_every_s": -1.0}, "checkpoint_every_s=-1.0: found -1.0, expected more than 0 seconds"),
        ({"restarts": -1}, "restarts=-1: found -1, expected a whole number, 0 or more"),
        ({"eval_every": 0}, "eval_every=0: found 0, expected a whole number from 1 to 2**62"),
        ({"eval_every": 8, "eval_episodes": 0}, "eval_episodes=0: found 0, expected a whole number from 1 to 1000000"),
        ({"eval_every": 8, "eval_workers": -1}, "eval_workers=-1: found -1, expected a whole number from 0 to 1024"),
        ({"keep_every_s": 0.0}, "keep_every_s=0.0: found 0.0, expected more than 0 seconds"),
        ({"keep_best": -1}, "keep_best=-1: found -1, expected a whole number, 0 or more"),
        ({"metrics_port": 65536}, "metrics_port=65536: found 65536, expected a whole number from 0 to 65535"),
        ({"callback_every_s": -1.0}, "callback_every_s=-1.0: found -1.0, expected 0 seconds or more"),
        ({"callback_every": 0}, "callback_every=0: found 0, expected a whole number from 1 to 2**62"),
        (
            {"stop_at_eval_return": 5.0},
            "stop_at_eval_return=5.0: found it without eval_every=, expected how often to evaluate",
        ),
        ({"eval_workers": 2}, "eval_workers=2: found it without eval_every=, expected how often to evaluate"),
        (
            {"eval_env_settings": {}},
            "eval_env_settings={}: found it without eval_every=, expected how often to evaluate",
        ),
    ],
)
def test_numbers_out_of_range_are_refused_in_the_words_of_python(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        RunConfig(**given)
    assert str(caught.value) == words
    with pytest.raises(UserError) as caught:
        runnel.train("reinforce", "CartPole-v1", **given)
    assert str(caught.value) == words


@pytest.mark.parametrize("steps", [1e6, 1_000_000])
def test_a_whole_float_is_a_number_of_steps(steps: Any) -> None:
    given = settings.check_arguments(run_for, {"steps": steps, "envs": 8.0, "rate": 2.0})
    assert given == {"steps": 1_000_000, "envs": 8, "rate": 2.0}
    assert [type(value) for value in given.values()] == [int, int, float]


@pytest.mark.parametrize("steps", [1.5, float("inf"), float("nan"), "1e6", True])
def test_what_is_no_whole_number_is_refused(steps: Any) -> None:
    with pytest.raises(UserError, match=r"steps=.*expected a whole number"):
        settings.check_arguments(run_for, {"steps": steps, "envs": None, "rate": 1.0})


def run_for(steps: int, envs: int | None, rate: float) -> None: ...


# The format


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"format": FORMAT + 1, "runnel_version": "9.1.0"},
            f"found format {FORMAT + 1}, written by Runnel 9.1.0; expected format {FORMAT} or older, which Runnel "
            f"{runnel.__version__} reads; use Runnel 9.1.0 for this run",
        ),
        ({"format": FORMAT + 1}, "written by a newer Runnel;"),
        ({"format": FORMAT + 1, "runnel_version": "1; rm -rf ~"}, "written by a newer Runnel;"),
        ({"format": "2"}, "'format' is '2', which no run has"),
        ({"format": True}, "'format' is 'True', which no run has"),
        ({"format": 0}, "'format' is '0', which no run has"),
    ],
)
def test_a_format_that_is_not_known_is_refused_in_words(found: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        run_config.check_json(Path("run/config.json"), found)
    assert str(caught.value).startswith("run/config.json: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("found", [{}, {"format": FORMAT}, [], None])
def test_a_format_that_is_known_or_missing_is_read(found: Any) -> None:
    run_config.check_format("config.json", found)
