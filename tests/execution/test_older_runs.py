"""Run directories that other versions have written."""

import json
import shutil
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

import runnel
from runnel.cli.main import main
from runnel.config.run_config import FORMAT
from runnel.deprecated import Renamed
from runnel.distributions.fine import Fine
from runnel.evaluation.evaluate import evaluate
from runnel.execution.run import read_result
from runnel.reporting.run_summary import summary

OLD = Path(__file__).parents[1] / "support" / "run_of_0_1_0"
"""By the version before config.json had a format: `runnel train reinforce CartPole-v1 --distribution fine --actors 1
--set distribution.ring=2 hidden=4 --envs 4 --steps 600 --seed 3`."""


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "run"))


def test_it_goes_on_under_its_own_distribution_as_a_run_of_this_version_does(old_run: Path, tmp_path: Path) -> None:
    with pytest.warns(Renamed, match=r"Fine\(ring=...\) is now Fine\(env_splits=...\)"):
        run = runnel.resume(old_run, steps=1200, quiet=True)
    assert (run.result["status"], run.result["env_steps"], run.result["updates"]) == ("finished", 1536, 3)
    assert run.built is not None
    assert run.built.distribution == Fine(1, 2)
    config = json.loads((old_run / "config.json").read_text())
    assert config["distribution"]["settings"] == {"actors": 1, "env_splits": 2}
    assert (config["format"], config["runnel_version"], config["steps"]) == (FORMAT, runnel.__version__, 1200)
    evaluate(old_run, episodes=1)  # without a warning
    whole = runnel.train(
        "reinforce", "CartPole-v1", Fine(1, 2), envs=4, steps=1200, seed=3, settings={"hidden": (4,)}, quiet=True,
        run_dir=tmp_path / "whole",
    )  # fmt: skip
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), run.params, whole.params)


def test_its_result_is_read_whose_workers_have_a_role_in_place_of_a_fragment() -> None:
    result = read_result(OLD)
    assert result is not None
    assert [worker["role"] for worker in result["workers"]] == ["environment", "learner"]
    assert "finished: reinforce on CartPole-v1, fine, seed 3" in summary(result)


def test_it_is_evaluated_and_plotted(old_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(old_run, episodes=2)
    assert (Path(found["policy"]).name, found["algorithm"], found["episodes"]) == ("000000000002", "reinforce", 2)
    assert main(["eval", str(old_run), "--episodes", "1", "--json"]) == 0
    assert main(["plot", str(old_run), "--out", str(tmp_path / "curve.svg")]) == 0
    assert "curve.svg" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["resume RUN", "resume RUN --actors 2", "eval RUN", "plot RUN --out curve.png"])
def test_a_newer_format_is_refused_in_words(
    command: str, old_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(old_run.parent)
    config = json.loads((old_run / "config.json").read_text())
    newer = {**config, "format": FORMAT + 1, "runnel_version": "7.0"}
    (old_run / "config.json").write_text(json.dumps(newer))
    assert main([str(old_run) if word == "RUN" else word for word in command.split()]) == 2
    printed = capsys.readouterr()
    assert f"config.json: found format {FORMAT + 1}, written by Runnel 7.0; expected format {FORMAT}" in printed.err
    assert "use Runnel 7.0 for this run" in printed.err
    assert json.loads((old_run / "config.json").read_text()) == newer
    assert not Path("curve.png").exists()
