"""Commands for directories of several runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Ended, run_command

import runnel
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate

TRAIN = "train toys:Reinforce gymnax:CartPole-v1"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    return partial(run_command, capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--seeds 0", "argument --seeds: found 0, expected a whole number of 1 or more"),
        ("--seeds x", "argument --seeds: found 'x', expected a whole number of 1 or more"),
        ("--seeds -3", "argument --seeds: found -3, expected a whole number of 1 or more"),
        ("--seeds 1,", "argument --seeds: found '', expected a whole number of 0 or more"),
        ("--seeds 1,x", "argument --seeds: found 'x', expected a whole number of 0 or more"),
        ("--seeds 1,-2", "argument --seeds: found -2, expected a whole number of 0 or more"),
        ("--seeds 99999", "argument --seeds: found 99999, expected at most 4096"),
        ("--seeds 1,1", "found a seed twice, expected each once"),
        ("--seeds 3 --wandb", "--wandb: found it for several members, expected it for one run alone"),
        ("--seeds 3 --sink mlflow", "--sink: found it for several members, expected it for one run alone"),
        ("--seeds 3 --dry-run", "found --dry-run and --seeds; --dry-run shows one run: leave --seeds out"),
    ],
)
def test_a_mistake_in_seeds_is_one_line(
    flags: str, message: str, command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*TRAIN.split(), *flags.split())
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.said) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keyword", ["sinks", "on_update", "on_evaluation", "on_checkpoint", "transport"])
def test_what_belongs_to_one_run_is_refused_for_several(keyword: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{keyword}=: found it for several members"):
        runnel.train_members("ppo", "gymnax:CartPole-v1", seeds=2, run_dir=tmp_path / "a", **{keyword: [print]})
    assert not (tmp_path / "a").exists()


def test_one_run_of_several_is_named_by_its_number(members_dir: Path, command: Callable[..., Ended]) -> None:
    ended = command("policies", members_dir, "--member", 3, "--json")
    assert ended.status == 0, ended.err
    assert [each["version"] for each in json.loads(ended.out)] == [
        snapshot.version for snapshot in runnel.policies(members_dir / "member-3").query()
    ]
    ended = command("eval", f"{members_dir}@best", "--member", 3, "--episodes", 2, "--json")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert (found["run_dir"], found["tag"]) == (str(members_dir / "member-3"), "best")
    assert command("eval", members_dir, "--member", 0, "--episodes", 1).status == 0


def test_a_member_is_exported_under_the_name_of_both(
    members_dir: Path, command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("export", members_dir, "--member", 1, "--format", "stablehlo")
    assert (ended.status, ended.out) == (0, "members-member-1-stablehlo\n")
    assert (tmp_path / "members-member-1-stablehlo" / "model.stablehlo").is_file()


def test_the_same_from_python(members_dir: Path, tmp_path: Path) -> None:
    by_number, by_path = runnel.load(members_dir, member=2), runnel.load(members_dir / "member-2")
    assert isinstance(by_number, runnel.Policy)
    assert isinstance(by_path, runnel.Policy)
    for name, array in by_number.arrays.items():
        np.testing.assert_array_equal(array, by_path.arrays[name])
    assert by_number.config.algorithm["settings"]["learning_rate"] == 1e-2
    assert runnel.policies(members_dir, member=2).run_dir == members_dir / "member-2"
    made = runnel.export(members_dir, tmp_path / "exported", member=2)
    assert (made / "model.json").is_file()
    with pytest.raises(UserError, match=r"member=0: found a Policy, expected the path of a directory"):
        runnel.load(by_number, member=0)
    with pytest.raises(UserError, match="holds no members"):
        evaluate(members_dir / "member-2", member=0)


@pytest.mark.parametrize(
    "words", ["eval DIR", "eval DIR@best", "policies DIR", "export DIR --format stablehlo",
              "export DIR@best --format stablehlo", "train --config DIR", f"{TRAIN} --init-from DIR",
              f"{TRAIN} --init-from DIR@best"]
)  # fmt: skip
def test_several_runs_where_one_is_expected_are_refused_in_a_line(
    words: str, members_dir: Path, command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*words.replace("DIR", str(members_dir)).split())
    assert (ended.status, ended.out) == (2, "")
    first = members_dir / "member-0"
    text = f"runnel {words.split()[0]}: {members_dir} holds 4 runs; name one of them: {first} to member-3"
    assert ended.said == [text]
    assert [path.name for path in tmp_path.iterdir()] == ["members"]


@pytest.mark.parametrize("flags", ["--on-nan skip", "--distribution inline", "--actors 2"])
def test_flags_of_one_run_do_not_resume_several(flags: str, members_dir: Path, command: Callable[..., Ended]) -> None:
    ended = command("resume", members_dir, *flags.split())
    assert ended.status == 2
    assert f"holds several runs; found {flags.split()[0]}, which can be given for one of them" in ended.err
    assert len(ended.said) == 1


def test_a_directory_of_several_runs_is_not_overwritten(members_dir: Path, command: Callable[..., Ended]) -> None:
    (members_dir / "result.json").unlink()  # as after a kill
    for more in ([], ["--seeds", "2"]):
        ended = command(*TRAIN.split(), "--run-dir", members_dir, "--steps", 32, *more)
        assert ended.status == 2
        assert f"already holds several runs; continue them with `runnel resume {members_dir}`" in ended.err


@pytest.mark.parametrize(
    "words", ["resume DIR", "eval DIR --member 0", "policies DIR --member 0", "plot DIR --out a.svg"]
)
@pytest.mark.parametrize("directory", ["../gift", "/etc", "member-0/../../gift", 7, "member-1"])
def test_an_edited_list_of_members_is_refused_in_a_line(
    words: str, directory: object, members_dir: Path, command: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(members_dir.parent)
    file = members_dir / "members.json"
    found = json.loads(file.read_text())
    found["members"][0]["directory"] = directory
    file.write_text(json.dumps(found))
    ended = command(*words.replace("DIR", str(members_dir)).split())
    assert (ended.status, ended.out) == (2, "")
    assert "was the file edited?" in ended.err
    assert len(ended.said) == 1


def test_plot_draws_bands_and_compares(members_dir: Path, command: Callable[..., Ended], tmp_path: Path) -> None:
    (members_dir / "member-1" / "metrics.jsonl").unlink()
    ended = command("plot", members_dir, "--out", tmp_path / "curves.svg")
    assert ended.status == 0, ended.err
    path, heading, compared = ended.out.splitlines()
    assert path == str(tmp_path / "curves.svg")
    assert heading == "probability of improvement of the final return:"
    assert compared.startswith(f"{members_dir} (learning_rate=0.01) over {members_dir} (learning_rate=0.001): ")
    assert compared.endswith(", 95%)")
    assert ended.err == f"runnel plot: {members_dir}: left out, without a curve yet: member-1\n"
    alone = command("plot", members_dir / "member-0", "--out", tmp_path / "curve.svg")
    assert alone.out == f"{tmp_path / 'curve.svg'}\n"
