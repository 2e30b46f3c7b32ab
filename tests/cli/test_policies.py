"""`runnel policies` and `runnel eval RUN_DIR@TAG`, as scripts depend on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Ended, run_command
from toys import Drift, Reinforce

import runnel
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.policy_store import PolicyStore
from runnel.reporting.curves import read_curve
from runnel.reporting.statistics import RESAMPLES, confidence_interval, evaluation_statistics, flat


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    return partial(run_command, capsys)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    runnel.train(
        Reinforce(), "evaluated:Walk", "inline", envs=4, steps=128, seed=3, eval_every=64, eval_episodes=3,
        keep_every=32, run_dir=run_dir, quiet=True,
    )  # fmt: skip
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def listed(ended: Ended) -> list[int]:
    assert ended.status == 0, ended.err
    return [each["version"] for each in json.loads(ended.out)]


def test_evaluations_are_drawn(run_dir: Path, tmp_path: Path, command: Callable[..., Ended]) -> None:
    picture = tmp_path / "curve.svg"
    assert command("plot", run_dir, "--metric", "eval/return", "--out", picture) == (0, f"{picture}\n", "")
    assert "<!-- eval/return -->" in picture.read_text()
    curve, found = read_curve(run_dir, "eval/return"), read_evaluations(run_dir)
    assert curve.env_steps.tolist() == [each["env_steps"] for each in found] == [0, 64, 128]
    assert curve.values.tolist() == [each["mean_return"] for each in found]
    refused = command("plot", run_dir, "--metric", "eval/retrun", "--out", tmp_path / "other.svg")
    assert refused.status == 2
    assert "did you mean 'eval/return'" in refused.err


def test_policies_are_listed(run_dir: Path, command: Callable[..., Ended]) -> None:
    ended = command("policies", run_dir)
    assert (ended.status, ended.err) == (0, "")
    head, *rows = ended.out.splitlines()
    assert head.split() == ["version", "steps", "time", "eval", "tags"]
    assert [row.split()[:2] for row in rows] == [["0", "0"], ["1", "32"], ["2", "64"], ["3", "96"], ["4", "128"]]
    assert [row.split()[4] != "-" for row in rows] == [True, False, True, False, True]
    assert rows[-1].endswith("latest")
    assert sum("best" in row for row in rows) == 1
    (first, *_) = json.loads(command("policies", run_dir, "--json").out)
    assert first.keys() == {"group", "version", "env_steps", "time", "tags", "metadata", "path"}
    assert first["metadata"]["episodes"] == 3
    assert runnel.load(first["path"]).config.version == 0


def test_policies_are_filtered(run_dir: Path, command: Callable[..., Ended]) -> None:
    def of(*flags: str) -> list[int]:
        return listed(command("policies", run_dir, "--json", *flags))

    scores = {s.version: s.score for s in PolicyStore(run_dir) if s.score is not None}
    assert of("--version", "3") == [3]
    assert of("--with-tag", "latest") == [4]
    assert of("--with-tag", "best") == [max(scores, key=lambda v: (scores[v], -v))]
    assert of("--where", "episodes=3") == list(scores)
    limit = sorted(scores.values())[1]
    assert of("--where", f"eval/return>={limit}") == [v for v, score in scores.items() if score >= limit]
    assert of("--where", f"eval/return>{limit}", "--where", "eval/return<1e9") == [
        v for v, score in scores.items() if score > limit
    ]
    assert of("--where", "eval/return>=0", "--where", "eval/return<0") == []
    assert of("--where", "nothing=1") == of("--group", "nobody") == of("--where", "episodes=three") == []
    assert "has no such policy" in command("policies", run_dir, "--version", "99").out


def test_policies_are_tagged(run_dir: Path, command: Callable[..., Ended]) -> None:
    ended = command("policies", run_dir, "--version", "1", "--tag", "before-change")
    assert (ended.status, len(ended.out.splitlines())) == (0, 2)
    assert "before-change" in ended.out
    assert listed(command("policies", run_dir, "--json", "--tag", "newest")) == [4]  # of several, the newest
    assert listed(command("policies", run_dir, "--json", "--with-tag", "before-change")) == [1]
    played = command("eval", f"{run_dir}@before-change", "--episodes", "1", "--json")
    assert json.loads(played.out)["version"] == 1
    assert command("policies", run_dir, "--untag", "before-change").status == 0
    for flags, words in [
        (["--untag", "before-change"], "has no tag 'before-change'"),
        (["--tag", "latest"], "latest and best are set by the run"),
        (["--tag", "a/b"], "expected a letter"),
        (["--tag", "x", "--version", "99"], "no policy was found to tag"),
        (["--where", "a"], "--where a: expected NAME=VALUE"),
        (["--untag", "newest", "--where", "a"], "--where a: expected NAME=VALUE"),
        (["--with-tag", "newst"], "has no policy 'newst'; did you mean 'newest'"),
    ]:
        ended = command("policies", run_dir, *flags)
        assert (ended.status, ended.out) == (2, "")
        assert words in ended.err
        assert len(ended.said) == 1
    assert listed(command("policies", f"{run_dir}@newest", "--json")) == [4]  # no mistake has removed it
    assert listed(command("policies", f"{run_dir}@3", "--json")) == [3]
    assert listed(command("policies", f"{run_dir}@newest", "--json", "--untag", "newest")) == [4]
    assert command("policies", f"{run_dir}@newest").status == 2


def test_policies_of_what_is_no_run_are_refused(run_dir: Path, tmp_path: Path, command: Callable[..., Ended]) -> None:
    saved = runnel.load(run_dir).save(tmp_path / "saved")
    for words, line in [
        (["policies", run_dir / "nowhere"], "there is no directory"),
        (["policies", tmp_path], "holds no run: there is no config.json in it"),
        (["policies", saved], "holds a saved policy, expected a run directory"),
        (["policies", f"{run_dir}@latest", "--with-tag", "best"], "beside --with-tag best, expected one of them"),
        (["eval", saved], "holds a saved policy, expected a run directory"),
        (["eval", f"{run_dir}@{'9' * 5000}"], "has no policy '999"),
        (["train", "--config", saved], "holds a saved policy, expected a run directory"),
        (["train", "--config", saved / "config.json"], "describes a policy, expected the config.json of a run"),
    ]:
        ended = command(*words)
        assert (ended.status, ended.out) == (2, "")
        assert line in ended.err
        assert len(ended.said) == 1


def test_groups_have_a_column(tmp_path: Path, command: Callable[..., Ended]) -> None:
    runnel.train(Drift(), "toys:Tag", "inline", envs=4, steps=32, run_dir=tmp_path / "run", quiet=True)
    ended = command("policies", tmp_path / "run")
    assert ended.out.splitlines()[0].split()[0] == "group"
    assert [row.split()[0] for row in ended.out.splitlines()[1:]] == ["hunter", "runners"]
    assert [
        s["group"] for s in json.loads(command("policies", tmp_path / "run", "--group", "hunter", "--json").out)
    ] == ["hunter"]
    PolicyStore(tmp_path / "run").tag("alone", group="hunter")
    ended = command("eval", f"{tmp_path / 'run'}@alone", "--episodes", "1")
    assert ended.status == 2
    assert "has no policy 'alone' of group 'runners'" in ended.err


def test_eval_takes_a_tag_and_settings_and_writes_json(
    run_dir: Path, tmp_path: Path, command: Callable[..., Ended]
) -> None:
    out = tmp_path / "found.json"
    plain = json.loads(command("eval", f"{run_dir}@0", "--episodes", "4", "--seed", "5", "--json").out)
    ended = command(
        "eval", f"{run_dir}@0", "--episodes", "4", "--seed", "5", "--set", "env.bonus=2.0", "--out", out
    )  # fmt: skip
    assert ended.status == 0, ended.err
    found = json.loads(out.read_text())
    assert (found["version"], found["env_steps"], found["lengths"]) == (0, 0, plain["lengths"])
    np.testing.assert_allclose(
        np.array(found["returns"]) - plain["returns"], 2.0 * np.array(plain["lengths"]), rtol=1e-5
    )
    assert "95%), mean of 4 episodes" in ended.out
    assert ended.out.splitlines()[0].endswith(" on evaluated:Walk, version 0, 0 steps")
    best = command("eval", f"{run_dir}@best", "--episodes", "1", "--out", out).out
    found = json.loads(out.read_text())
    assert found["tag"] == "best"
    assert f", best: version {found['version']}, {found['env_steps']:,} steps\n  policy      {found['policy']}" in best
    assert "length" in ended.out
    low, high = found["return_interval"]
    assert found["min_return"] <= low <= found["mean_return"] <= high <= found["max_return"]
    many = ["eval", run_dir, "--episodes", "20", "--seed", "5", "--json"]
    greedy, explored = json.loads(command(*many).out), json.loads(command(*many, "--explore").out)
    assert explored["returns"] != greedy["returns"]
    for flags, words in [
        (["--set", "bonus=1"], "expected env.key=value"),
        (["--set", "env.nothing=1"], "nothing"),
        (["--set", "env.wide=true"], "was written with other settings, or for another environment"),
    ]:
        ended = command("eval", run_dir, "--episodes", "1", *flags)
        assert ended.status == 2, ended.out
        assert words in ended.err
        assert len(ended.err.splitlines()) <= 2
    ended = command("eval", f"{run_dir}@bset", "--episodes", "1")
    assert (ended.status, "no policy 'bset'; did you mean 'best'" in ended.err) == (2, True)
    ended = command("eval", run_dir / "nowhere")
    assert (ended.status, "there is no directory" in ended.err) == (2, True)


# The numbers


def test_an_evaluation_in_numbers() -> None:
    found = evaluation_statistics(
        {"a": np.array([1.0, 3.0]), "b": np.array([3.0, 5.0])},
        np.array([4, 6]),
        {"won": np.array([1.0, np.nan])},
        np.array([2.0, 4.0]),
    )
    assert (found["episodes"], found["mean_return"], found["returns"], found["lengths"]) == (2, 3.0, [2.0, 4.0], [4, 6])
    assert found["group_returns"] == {"a": 2.0, "b": 4.0}
    assert found["env"] == {"won": 1.0}
    assert flat(found) == {
        "eval/return": 3.0, "eval/return_std": 1.0, "eval/length": 5.0, "eval/return/a": 2.0, "eval/return/b": 4.0,
        "eval/env/won": 1.0,
    }  # fmt: skip
    assert json.loads(json.dumps(found)) == found
    assert "cut_episodes" not in found


def test_episodes_without_a_return_are_left_out_of_the_numbers() -> None:
    nan = np.nan
    found = evaluation_statistics(
        {"a": np.array([1.0, nan, 3.0]), "b": np.array([3.0, nan, 5.0])}, np.array([4, 0, 6]),
        {"won": np.array([1.0, nan, 0.0])}, np.array([2.0, nan, 4.0]),
    )  # fmt: skip
    assert (found["returns"], found["lengths"]) == ([2.0, None, 4.0], [4, None, 6])
    assert (found["episodes"], found["cut_episodes"], found["mean_return"], found["mean_length"]) == (2, 1, 3.0, 5.0)
    assert (found["group_returns"], found["env"]) == ({"a": 2.0, "b": 4.0}, {"won": 0.5})
    assert "learner_return" not in found


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        low, high = confidence_interval(rng.normal(3.0, 2.0, 30))
        covered.append(low <= 3.0 <= high)
    assert 0.88 <= np.mean(covered) <= 0.98
    assert confidence_interval(np.array([2.0])) == (2.0, 2.0)
    assert confidence_interval(np.full(5, 7.0)) == (7.0, 7.0)
    values = rng.normal(size=9)
    assert confidence_interval(values) == confidence_interval(values)  # the same every time
    assert RESAMPLES >= 1000
