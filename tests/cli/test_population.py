"""Flags of populations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import Ended, run_command

from runnel.cli import arguments, population_flags
from runnel.config.search_space import LogUniform, Uniform
from runnel.population import PBT

TRAIN = "train ppo gymnax:CartPole-v1"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    return partial(run_command, capsys)


def test_flags_describe_a_rule() -> None:
    flags = (
        "--population 8 --pbt-every 1e4 --pbt-quantile 0.5 --pbt-perturb learning_rate=log:1e-5:1e-2 entropy_cost=0:1 "
        "--pbt-resample discount=0.9:0.999 --pbt-objective env/is_success"
    )
    assert population_flags.rule_of(arguments.parse([*TRAIN.split(), *flags.split()])) == PBT(
        every=10_000, quantile=0.5, objective="env/is_success", resample={"discount": Uniform(0.9, 0.999)},
        perturb={"learning_rate": LogUniform(1e-5, 1e-2), "entropy_cost": Uniform(0.0, 1.0)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--population 1", "argument --population: found 1, expected a whole number of 2 or more"),
        ("--pbt-every 10", "found --pbt-every without --population, expected how many members there are"),
        ("--population 4 --seeds 3", "found --population and --seeds, expected one of them"),
        ("--population 4 --dry-run", "found --population and --dry-run, expected one of them"),
        ("--population 4 --pbt-every 9 --population-rule a:B", "found --population-rule and --pbt-every"),
        ("--population 4 --pbt-perturb learning_rate", "found 'learning_rate', expected NAME=LOW:HIGH"),
        ("--population 4 --pbt-perturb learning_rate=1:x", "expected NAME=LOW:HIGH or NAME=log:LOW:HIGH"),
        (
            "--population 4 --pbt-perturb learning_rate=log:0:1",
            "high=1.0), expected two positive numbers",
        ),
        ("--population 4 --pbt-quantile 2", "quantile=2.0: found 2.0, expected more than 0 and at most 0.5"),
        ("--population 4 --pbt-perturb learning_rat=0:1", "PPO has no setting 'learning_rat'"),
        ("--population 4 --pbt-perturb unroll=1:9", "unroll"),
        ("--population 4 --pbt-every 9", "every=9: found 9 steps, expected an iteration or more"),
        ("--population 4 --stop-at-return 9", "found it for a population, whose members end together"),
        ("--population 4 --population-rule math:sqrt", "rule: found"),
        ("--population 4 --population-rule nowhere:Rule", "there is no module 'nowhere'"),
    ],
)
def test_a_mistake_is_one_line(
    flags: str, message: str, command: Callable[..., Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*TRAIN.split(), *flags.split())
    assert (ended.status, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.said) == 1
    assert not list(tmp_path.iterdir())
