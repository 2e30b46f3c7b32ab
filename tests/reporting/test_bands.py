"""Directories of members in pictures, and how they compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runnel.errors import UserError
from runnel.recording import members_file
from runnel.recording.members_file import Member
from runnel.reporting.bands import GRID, band, read_bands
from runnel.reporting.comparison import MOST_COMPARED, comparisons, read_scores
from runnel.reporting.curves import Curve, labels
from runnel.reporting.plot import plot
from runnel.reporting.statistics import bootstrap_interval, interquartile_mean


def curve(env_steps: list[float], values: list[float]) -> Curve:
    return Curve(Path("a"), ("ppo", "CartPole-v1", "fused"), {}, "seed 0", np.array(env_steps), np.array(values))


def make_members(
    directory: Path, returns: list[float | None], settings: list[dict[str, Any]] | None = None,
    environment: str = "CartPole-v1", algorithm: str = "PPO",
) -> Path:  # fmt: skip
    """Members as training leaves them: each reaches its return after 2,000 steps; None has no curve."""
    settings = settings or [{}] * len(returns)
    members = [Member(members_file.name_of(i, len(returns)), i, own) for i, own in enumerate(settings)]
    runs = []
    for member, value in zip(members, returns, strict=True):
        own = directory / member.directory
        own.mkdir(parents=True)
        config = {
            "algorithm": {"class": f"runnel.algorithms.x:{algorithm}", "settings": member.settings},
            "environment": {"name": environment, "settings": {}},
            "distribution": {"class": "runnel.distributions.fused:Fused", "settings": {}},
            "seed": member.seed,
        }
        (own / "config.json").write_text(json.dumps(config))
        points = [] if value is None else [(1000, 0.0), (2000, value)]
        lines = [json.dumps({"env_steps": env_steps, "mean_return": found}) + "\n" for env_steps, found in points]
        (own / "metrics.jsonl").write_text("".join(lines))
        runs.append({"directory": member.directory, "return": value})
    members_file.write(directory, members)
    (directory / "result.json").write_text(json.dumps({"runs": runs}))
    return directory


def shown(picture: Path) -> list[str]:
    """The texts of an SVG."""
    return [line.strip()[5:-4] for line in picture.read_text().splitlines() if line.strip().startswith("<!--")]


# Bands


def test_a_band_has_common_steps_up_to_the_end_of_the_shortest_member() -> None:
    found = band(Path("a"), [curve([0, 1000], [0, 10]), curve([200, 400], [2, 4])])
    assert (found.line.env_steps[0], found.line.env_steps[-1], len(found.line.env_steps)) == (200, 400, GRID)
    np.testing.assert_allclose(found.line.values, found.line.env_steps / 100)
    np.testing.assert_allclose(found.low, found.high)
    assert found.line.seed == "2 seeds"


def test_the_line_is_the_interquartile_mean_and_the_band_its_bootstrap_interval() -> None:
    members = [curve([0, 10], [value, 2 * value]) for value in (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e6)]
    found = band(Path("a"), members)
    np.testing.assert_allclose(found.line.values, np.linspace(3.5, 7.0, GRID))
    ends = [(found.low[i], found.high[i]) for i in (0, -1)]
    wanted = bootstrap_interval(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e6]), interquartile_mean)
    np.testing.assert_allclose(ends, [wanted, np.multiply(wanted, 2)])
    assert 0 < wanted[0] < 3.5 < wanted[1] < 1e6


def test_of_fewer_than_four_members_a_band_is_the_lowest_and_the_highest() -> None:
    found = band(Path("a"), [curve([0, 10], [value, value]) for value in (1.0, 2.0, 9.0)])
    np.testing.assert_allclose(found.low, 1.0)
    np.testing.assert_allclose(found.high, 9.0)
    np.testing.assert_allclose(found.line.values, 4.0)


def test_a_population_is_not_named_by_the_settings_of_one_member() -> None:
    curves = [curve([0, 1], [1, 2])._replace(settings={"learning_rate": str(k), "unroll": "8"}) for k in range(3)]
    found = band(Path("a"), curves, population=True).line
    assert (found.settings, found.seed) == ({"unroll": "8"}, "population of 3")


def test_a_member_alone_is_its_own_band() -> None:
    found = band(Path("a"), [curve([0, 5, 10], [1, 2, 0])])
    np.testing.assert_array_equal(found.low, found.line.values)
    np.testing.assert_array_equal(found.high, found.line.values)
    assert found.line.seed == "1 seed"


def test_members_that_share_a_single_point_have_a_band_of_one_point(tmp_path: Path) -> None:
    found = band(Path("a"), [curve([100], [1]), curve([100, 200], [3, 9])])
    assert found.line.env_steps.tolist() == [100]
    assert (found.low[0], found.line.values[0], found.high[0]) == (1, 2, 3)


def test_a_directory_is_one_band_with_one_legend_entry(tmp_path: Path) -> None:
    several, few = make_members(tmp_path / "a", [1.0] * 16), make_members(tmp_path / "b", [2.0] * 3)
    texts = shown(plot([several, few, few / "member-1"], tmp_path / "curves.svg"))
    assert [text for text in texts if "seed" in text] == ["16 seeds", "3 seeds", "seed 1"]
    assert "ppo, CartPole-v1, fused, 16 seeds" in shown(plot([several], tmp_path / "curve.svg"))


def test_members_with_other_settings_have_bands_of_their_own(tmp_path: Path) -> None:
    settings = [{"learning_rate": rate} for rate in (0.1, 0.1, 0.2, 0.2)]
    directory = make_members(tmp_path / "a", [1.0, 3.0, 5.0, 7.0], settings)
    bands = read_bands(directory, "mean_return")
    assert labels([each.line for each in bands])[1] == ["learning_rate=0.1", "learning_rate=0.2"]
    assert [each.line.values[-1] for each in bands] == [2.0, 6.0]


def test_a_member_without_a_curve_is_left_out_and_named(tmp_path: Path) -> None:
    directory = make_members(tmp_path / "a", [1.0, None, 3.0])
    notes: list[str] = []
    (found,) = read_bands(directory, "mean_return", notes.append)
    assert found.line.seed == "2 seeds"
    assert notes == [f"{directory}: left out, without a curve yet: member-1"]


def test_a_directory_without_any_curve_is_refused(tmp_path: Path) -> None:
    directory = make_members(tmp_path / "a", [None, None])
    with pytest.raises(UserError, match=r"no member of .*a has a curve: .*member-0 has no curve yet"):
        plot([directory], tmp_path / "curve.svg")
    with pytest.raises(UserError, match=r"metric=env/x: .*member-0 has none of that name"):
        plot([make_members(tmp_path / "b", [1.0, 2.0])], tmp_path / "curve.svg", "env/x")
    assert not (tmp_path / "curve.svg").exists()


def test_members_that_were_trained_are_drawn(members_dir: Path, tmp_path: Path) -> None:
    for metric in ("mean_return", "eval/return", "learn/loss"):
        texts = shown(plot([members_dir, members_dir / "member-0"], tmp_path / "curves.svg", metric))
        for words in ("learning_rate=0.001, 2 seeds", "learning_rate=0.01, 2 seeds", "learning_rate=0.001, seed 0"):
            assert words in texts


# Comparisons


def test_every_pair_of_directories_is_compared(tmp_path: Path) -> None:
    a, b, c = (
        make_members(tmp_path / name, returns)
        for name, returns in (("a", [1.0, 2.0]), ("b", [3.0, 4.0, 5.0]), ("c", [1.0, 2.0]))
    )
    assert comparisons([a, b, c / "member-0", c])[1:] == [
        f"{b} over {a}: 1.00 (1.00 to 1.00, 95%)",
        f"{c} over {a}: 0.50 (0.00 to 1.00, 95%)",
        f"{c} over {b}: 0.00 (0.00 to 0.00, 95%)",
    ]
    assert comparisons([a, c / "member-0"]) == []


def test_members_with_other_settings_are_compared_with_each_other(tmp_path: Path) -> None:
    directory = make_members(tmp_path / "a", [1.0, 2.0, 3.0, 4.0], [{"x": 1}, {"x": 1}, {"x": 2}, {"x": 2}])
    assert comparisons([directory])[1:] == [f"{directory} (x=2) over {directory} (x=1): 1.00 (1.00 to 1.00, 95%)"]


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    a = make_members(tmp_path / "a", [1.0, 2.0, None])
    elsewhere = make_members(tmp_path / "elsewhere", [1.0, 2.0], environment="Acrobot-v1")
    none = make_members(tmp_path / "none", [None, None])
    alone = make_members(tmp_path / "alone", [2.0])
    lines = comparisons([a, elsewhere, none, alone])
    assert f"{a}: 1 of 3 members have no return: left out" in lines
    assert f"{elsewhere} over {a}: not compared, environments differ" in lines
    assert f"{none} over {a}: not compared, no member has a return" in lines
    assert f"{alone} over {a}: 0.75 (one member alone has no interval)" in lines


def test_of_many_groups_no_pairs_are_listed(tmp_path: Path) -> None:
    many = MOST_COMPARED + 1
    directory = make_members(tmp_path / "a", [1.0] * many, [{"x": i} for i in range(many)])
    (line,) = comparisons([directory])
    assert f"found more than {MOST_COMPARED}" in line


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"runs": 3}',
        '{"runs": [{"directory": "member-0", "return": NaN}]}',
        '{"runs": [3, {"directory": ["a"]}]}',
        '{"runs": [{"directory": "other", "return": 1}]}',
    ],
)
def test_without_a_result_the_newest_returns_of_members_count(text: str, tmp_path: Path) -> None:
    directory = make_members(tmp_path / "a", [1.0, 2.0])
    (directory / "result.json").write_text(text)
    (scores,) = read_scores(directory)
    assert scores.values.tolist() == [1.0, 2.0]
    evaluated = {"env_steps": 2000, "episodes": 2, "mean_return": 7.0, "std_return": 0.0, "mean_length": 3.0,
                 "returns": [7.0, 7.0], "return_interval": [7.0, 7.0]}  # fmt: skip
    (directory / "member-1" / "evaluations.jsonl").write_text(json.dumps(evaluated) + "\n")
    assert read_scores(directory)[0].values.tolist() == [1.0, 7.0]


@pytest.mark.parametrize("value", ["1e999", "-1e200", "null", '"1"', "[1]"])
def test_a_return_that_is_no_finite_number_is_left_out(value: str, tmp_path: Path) -> None:
    directory = make_members(tmp_path / "a", [1.0, 2.0])
    runs = f'{{"directory": "member-0", "return": {value}}}, {{"directory": "member-1", "return": 5.0}}'
    (directory / "result.json").write_text(f'{{"runs": [{runs}]}}')
    assert read_scores(directory)[0].values.tolist() == [5.0]


def test_the_returns_of_members_that_were_trained_are_those_of_their_evaluations(members_dir: Path) -> None:
    slow, fast = read_scores(members_dir)
    result = json.loads((members_dir / "result.json").read_text())
    assert [*slow.values, *fast.values] == [run["return"] for run in result["runs"]]
    (members_dir / "result.json").unlink()
    again = read_scores(members_dir)
    assert [each.values.tolist() for each in again] == [slow.values.tolist(), fast.values.tolist()]
