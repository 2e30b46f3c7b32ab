"""Pictures of learning curves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from runnel.errors import UserError
from runnel.recording.metrics import MetricsLog, read_metrics
from runnel.reporting import plot as plot_module
from runnel.reporting.plot import labels, plot, read_curve


def make_run(
    directory: Path, returns: list[float | None], algorithm: str = "PPO", seed: int = 0, env: Any = None,
    environment: str = "CartPole-v1", **settings: Any,
) -> Path:  # fmt: skip
    directory.mkdir(parents=True)
    config = {
        "algorithm": {"class": f"runnel.algorithms.x:{algorithm}", "settings": settings},
        "environment": {"name": environment, "settings": env or {}},
        "distribution": {"class": "runnel.distributions.inline:Inline", "settings": {}},
        "seed": seed,
    }
    (directory / "config.json").write_text(json.dumps(config))
    lines = [json.dumps({"env_steps": 1000 * i, "mean_return": value}) for i, value in enumerate(returns)]
    (directory / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def test_a_run_becomes_a_picture(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [None, 10.0, 40.0, 200.0])
    picture = plot([run], tmp_path / "curve.png")
    pixels = imread(picture)
    assert pixels.shape[0] > 400
    assert pixels.std() > 0.01  # something is drawn
    assert {path.name for path in tmp_path.iterdir()} == {"a", "curve.png"}


@pytest.mark.parametrize("kind", ["svg", "pdf", "PNG"])
def test_other_kinds_of_picture(kind: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [10.0, 20.0])
    assert plot([run], tmp_path / f"curve.{kind}").stat().st_size > 1000


def test_several_runs_are_labelled_by_what_differs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(seed), [1.0, 2.0], seed=seed) for seed in range(2)]
    text = plot([*runs, make_run(tmp_path / "dqn", [3.0], "DQN")], tmp_path / "curves.svg").read_text()
    comments = [line.strip() for line in text.splitlines() if line.strip().startswith("<!--")]
    for words in ("ppo, seed 0", "ppo, seed 1", "dqn, seed 0", "CartPole-v1, inline"):
        assert f"<!-- {words} -->" in comments


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([{"learning_rate": 1e-3, "unroll": 8}, {"learning_rate": 0.01, "unroll": 8}],
         ["learning_rate=0.001", "learning_rate=0.01"]),
        ([{"hidden": [64, 64], "clip": None}, {"hidden": [32], "clip": True}],
         ["hidden=64,64, clip=none", "hidden=32, clip=true"]),
        ([{"x": 0.1}, {"x": 0.2, "seed": 1}], ["x=0.1, seed 0", "x=0.2, seed 1"]),
        ([{}, {"seed": 3}], ["seed 0", "seed 3"]),
        ([{}, {}], ["0", "1"]),
        ([{"x": 1}, {"x": 2}, {"x": 2}], ["x=1", "x=2, 1", "x=2, 2"]),
        ([{"x": 1, "y": 2}, {"algorithm": "DQN", "x": 1, "z": 3}], ["ppo", "dqn"]),
        ([{"network": {"object": "a.b:Wide"}}, {"network": {"class": "a:Deep", "settings": {}}}],
         ["network=wide", "network=deep"]),
        ([dict.fromkeys("abcdef", 1), dict.fromkeys("abcdef", 2)],
         ["a=1, b=1, c=1, d=1, 2 more", "a=2, b=2, c=2, d=2, 2 more"]),
        ([{"x": 1}], [""]),
        ([{"env": {"size": 6}}, {}], ["env.size=6", "env.size default"]),
        ([{"env": {"size": 6}}, {"env": {"size": 7}}, {"x": 1}], ["env.size=6", "env.size=7", "env.size default"]),
        ([{"env": {"size": 6}, **dict.fromkeys("abcd", 1)}, dict.fromkeys("abcd", 2)],
         ["env.size=6, a=1, b=1, c=1, 1 more", "env.size default, a=2, b=2, c=2, 1 more"]),
        ([{"env": {"size": 6}}, {"environment": "Other-v1"}], ["CartPole-v1", "Other-v1"]),
    ],
)  # fmt: skip
def test_runs_are_labelled_by_the_settings_that_differ(runs: Any, wanted: list[str], tmp_path: Path) -> None:
    curves = [read_curve(make_run(tmp_path / str(i), [1.0, 2.0], **settings)) for i, settings in enumerate(runs)]
    assert labels(curves)[1] == wanted


def test_a_run_is_called_by_its_configuration(tmp_path: Path) -> None:
    curve = read_curve(make_run(tmp_path / "a", [None, 1.0], seed=7))
    assert (*curve.names, curve.seed) == ("ppo", "CartPole-v1", "inline", "seed 7")
    assert curve.env_steps.tolist() == [1000.0]


def test_dollars_in_labels_are_no_formula(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(i), [1.0, 2.0], "PPO", note=f"{i} costs $\\frac{{$ or ${i}") for i in range(2)]
    assert plot(runs, tmp_path / "curves.png").stat().st_size > 1000


def test_only_a_very_noisy_curve_is_smoothed() -> None:
    steady = np.linspace(0, 100, 200) + np.sin(np.arange(200))
    noisy = np.random.default_rng(0).normal(size=200)
    assert plot_module.smoothed(steady) is steady
    smoothed = plot_module.smoothed(noisy)
    assert smoothed.shape == noisy.shape
    assert smoothed.std() < noisy.std() / 2


def test_a_mistake_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [1.0, 2.0])
    empty = make_run(tmp_path / "empty", [None, None])
    (tmp_path / "bare").mkdir()
    for runs, out, message in [
        ([tmp_path / "nowhere"], "c.png", "nowhere is no run: found nothing"),
        ([tmp_path / "bare"], "c.png", "found a directory without config.json"),
        ([run, empty], "c.png", "no episode has ended"),
        ([run], "c.xyz", "found ending '.xyz', expected .png, .svg or .pdf"),
        ([run], "c", "found ending ''"),
        ([run], "nowhere/c.png", "there is no directory"),
    ]:
        with pytest.raises(UserError) as error:
            plot(runs, tmp_path / out)
        assert message in str(error.value)
    with pytest.raises(UserError, match=r"cannot write /proc/c\.png"):
        plot([run], "/proc/c.png")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "empty", "bare"}


def test_a_run_of_a_few_seconds_has_a_curve_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", [])
    (run / "metrics.jsonl").unlink()
    now = [0.0]
    with MetricsLog(run, clock=lambda: now[0]) as log:
        for i in range(25):
            now[0] = i / 10
            log.write({"env_steps": i, "mean_return": float(i)})
    assert len(read_metrics(run)) <= 4  # at most a line a second, and one at the end
    np.testing.assert_array_equal(plot_module.read_curve(run).env_steps, np.arange(25))


def with_metric(directory: Path, name: str, values: list[float | None]) -> Path:
    run = make_run(directory, [0.0] * len(values))
    lines = [{"env_steps": 1000 * i, "mean_return": 0.0, name: value} for i, value in enumerate(values)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_another_metric_is_drawn_by_its_name(tmp_path: Path) -> None:
    run = with_metric(tmp_path / "a", "env/is_success", [None, 0.25, 0.75])
    curve = read_curve(run, "env/is_success")
    np.testing.assert_array_equal(curve.env_steps, [1000, 2000])
    np.testing.assert_array_equal(curve.values, [0.25, 0.75])
    text = plot([run], tmp_path / "curve.svg", "env/is_success").read_text()
    assert "<!-- env/is_success -->" in text
    assert "mean return" not in text


def test_a_metric_that_there_is_not_names_the_nearest(tmp_path: Path) -> None:
    run = with_metric(tmp_path / "a", "env/is_success", [0.5])
    with pytest.raises(UserError, match=r"metric=env/success: .* has none of that name; did you mean 'env/is_success'"):
        plot([run], tmp_path / "curve.svg", "env/success")
    assert not (tmp_path / "curve.svg").exists()
