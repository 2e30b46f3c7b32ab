"""The learning table: its rows can be run, what they give is kept, and the page says what is kept."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import _learning_table as table
from benchmarks import learning
from benchmarks._learning_results import Run, read
from benchmarks._learning_tasks import PAIRS, TASKS, Task, Wanted, at_least, at_most, exactly
from benchmarks._machine import RESULTS
from runnel import algorithms, distributions
from runnel.cli import arguments
from runnel.config import settings

# Stands in for `runnel`: as quick as it is deaf.
STUB = """
import json, pathlib, sys, time
flags = dict(word[2:].split("=", 1) for word in sys.argv[4:] if "=" in word and not word.startswith("--set"))
if sys.argv[1] == "eval":
    print(json.dumps({f"{what}_return": 500.0 for what in ("mean", "std", "min", "max")} | {"episodes": 20}))
    sys.exit()
if flags["seed"] == "2":
    sys.exit("runnel train: it is broken")
run_dir = pathlib.Path(flags["run-dir"])
run_dir.mkdir()
config = {"algorithm": {"class": "m:PPO"}, "environment": {"name": "e"}, "distribution": {"class": "m:Inline"}}
(run_dir / "config.json").write_text(json.dumps({**config, "seed": 1, "envs": 8}))
lines = [{"env_steps": 1000 * i, "mean_return": 5.0 * i, "episodes": 2 * i} for i in range(1, 101)]
(run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
result = {"status": "finished", "mean_return": 480.0, "env_steps": 100_000, "wall_seconds": 1.0}
result |= {"distribution": "inline", "workers": [{"name": "process", "busy": 1.0}]}
if flags["seed"] == "3":
    time.sleep(600)
(run_dir / "result.json").write_text(json.dumps(result))
"""


def test_the_page_is_made_from_the_results() -> None:
    page = learning.PAGE.read_text()
    assert page == table.filled(page, read(RESULTS)), "run `python benchmarks/learning.py --table`"


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_row_is_a_command(task: Task, tmp_path: Path) -> None:
    args = arguments.parse(task.command(seed=1, run_dir=tmp_path))
    assert (args.algorithm, args.environment) == (task.algorithm, task.environment)
    assert (args.steps, args.seed, args.stop_at_return) == (task.steps, 1, task.stop_at)
    own = [pair for pair in args.set if not pair.startswith("env.")]
    assert settings.parse(algorithms.load(args.algorithm), own).keys() == task.settings.keys()
    if task.distribution:
        numbers = {name: value for name in task.numbers if (value := getattr(args, name)) is not None}
        assert numbers == task.numbers
        distributions.load(task.distribution)(**numbers)


@pytest.mark.parametrize(
    ("wanted", "words", "good", "bad"),
    [
        (at_least(1400), "at least 1,400", [1400.0, 9000.0], [1399.9, None]),
        (at_most(0.3), "at most 0.3", [-1.0, 0.3], [0.31, None]),
        (exactly(8), "8 exactly", [8.0], [7.0, 8.1]),
    ],
)
def test_what_is_expected(wanted: Wanted, words: str, good: list[float], bad: list[float | None]) -> None:
    assert str(wanted) == words
    assert all(wanted.holds(value) for value in good)
    assert not any(wanted.holds(value) for value in bad)


def test_every_seed_is_kept_as_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    stub = tmp_path / "stub.py"
    stub.write_text(STUB)
    monkeypatch.setattr(learning, "RUNNEL", [sys.executable, str(stub)])
    monkeypatch.setattr(learning, "describe", lambda on: {"date": "2026-01-02", "cores": 2, "device": "cpu"})
    task, out = TASKS["cartpole-ppo"], tmp_path / "results"
    options = argparse.Namespace(out=out, seeds=[1, 2, 3], jobs=3, missing=False, limit_s=1.0)
    learning.run([task], options)

    kept = json.loads((out / "learning-2-cores-cpu-2026-01-02.json").read_text())["tasks"]["cartpole-ppo"]
    assert kept["1"]["mean_return"] == 480.0
    assert kept["1"]["evaluation"]["mean_return"] == 500.0
    assert kept["1"]["reached_at"] == 95_000
    assert len(kept["1"]["curve"]) == learning.CURVE_POINTS
    assert (kept["1"]["curve"][0], kept["1"]["curve"][-1]) == ([1000, 5.0], [100_000, 500.0])
    assert kept["2"] == {"status": "failed", "reason": "runnel train: it is broken"}
    assert kept["3"]["status"] == "failed"  # it was out of time

    options.missing, options.seeds = True, [1, 2]
    capsys.readouterr()
    learning.run([task], options)
    assert "seed 2  failed" in (told := capsys.readouterr().out)
    assert "seed 1" not in told

    (run,) = read(out)
    assert list(run.seeds) == [1]  # what failed is not in the table
    assert (
        "| PPO | `CartPole-v1` | `inline` | 100,000 | 480.0 | 500.0 | at least 475 | 1 of 1 | 95,000 |"
        in table.tables([run])
    )
    table.draw([run], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 5_000


def test_the_difference_of_a_pair_has_its_confidence_interval() -> None:
    """By hand: variances 2.5 and 2.5, so a standard error of 1 with 8 degrees of freedom, and t = 2.306."""
    ahead, waits = [10.0, 11.0, 12.0, 13.0, 14.0], [9.0, 10.0, 11.0, 12.0, 13.0]
    assert table.difference(waits, ahead) == ("1.00 [-1.31, 3.31]", "+9.1% [-11.9%, +30.1%]")
    assert table.difference([20.0], [19.0]) == ("-1.00, of one seed", "-5.0%")
    pair = PAIRS[0]
    assert {task.distribution for task in pair} == {"coarse", "async"}
    assert pair.waits.settings == {"advantages": "gae"}
    more = {"evaluation": None, "distribution": "async", "env_steps": 1, "reached_at": None, "bottleneck": ""}
    old = {"staleness_mean": 1.5, "staleness_max": 4}

    def run(task: Task, returns: list[float], rate: float) -> Run:
        seeds = {k: {"mean_return": x, "steps_per_second": rate, **old, **more} for k, x in enumerate(returns)}
        return Run(task, "2 cores", seeds)

    shown = table.tables([run(pair.waits, waits, 100.0), run(pair.ahead, ahead, 250.0)])
    row = next(line for line in shown.splitlines() if "2.50x" in line)
    assert "| 11.0 ± 1.58 | 12.0 ± 1.58 | 1.00 [-1.31, 3.31] |" in row
    assert row.endswith("| 100 | 250 | 2.50x | 1.5, at most 4 | 2 cores |")
    assert "2.50x" not in table.tables([run(pair.ahead, ahead, 250.0)])  # of one side there is no difference
