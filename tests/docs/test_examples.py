"""What the documentation shows works."""

import ast
import csv
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from commands import run_command
from pages import FAST
from paths import EXAMPLES, ROOT

import runnel
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics


@pytest.mark.parametrize("distribution", ["inline", "fused"])
@pytest.mark.parametrize("algorithm", ["reinforce:Reinforce"])
def test_the_algorithm_of_the_documentation_trains(algorithm, distribution, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = runnel.train(
        algorithm, "gymnax:CartPole-v1", distribution, steps=20_000, run_dir=tmp_path / "run", quiet=True
    )
    assert run.result["status"] == "finished"
    assert run.result["mean_return"] > 20
    sys.modules.pop("reinforce", None)


def test_the_algorithm_of_the_documentation_is_short():
    assert len((EXAMPLES / "reinforce.py").read_text().splitlines()) <= 90


@pytest.mark.parametrize(("distribution", "workers"), [("staged:Staged", 4), ("staged:FusedOnOne", 1)])
def test_the_distributions_of_the_documentation_can_be_planned(distribution, workers, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    environment = "corridor:Corridor" if workers == 1 else "CartPole-v1"
    assert runnel.build("q_learning:QLearning", environment, distribution, envs=8).plan.workers == workers
    for module in ("staged", "q_learning", "corridor"):
        sys.modules.pop(module, None)


def test_the_replay_of_the_documentation_draws_recent_items_more_often(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from recent import RecentReplay  # pyright: ignore[reportMissingImports]

    replay = RecentReplay(capacity=100)
    state = replay.init(jnp.zeros((10,)), 8)
    for size in range(10, 131, 10):
        state = replay.add(state, jnp.arange(size - 10.0, size), 8)
        ages = size - replay.sample(state, jax.random.key(size), 1_000)
        kept = min(size, 100)
        assert ages.min() == 1
        assert ages.max() <= kept  # nothing that was overwritten, or never inserted
        assert jnp.median(ages) < 0.4 * kept  # of uniform draws it is half
    for module in ("recent", "q_learning"):
        sys.modules.pop(module, None)


def test_a_distribution_of_the_documentation_trains(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = runnel.train(
        "q_learning:QLearning", "CartPole-v1", "staged:Staged", steps=2_000, run_dir=tmp_path / "run", quiet=True
    )
    assert run.result["status"] == "finished"
    for module in ("staged", "q_learning"):
        sys.modules.pop(module, None)


def test_the_vector_of_the_documentation_trains(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = runnel.train(
        "reinforce", "many_carts:many_carts", envs=2, steps=64, run_dir=tmp_path / "run", quiet=True,
        settings={"unroll": 16, "hidden": (4,)}, env_settings={"length": 10},
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.built is not None
    assert run.built.environment.spec.max_episode_steps == 10
    sys.modules.pop("many_carts", None)


def test_the_environments_of_the_documentation_report_metrics_and_scores(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shaped = runnel.train("reinforce:Reinforce", "shaped:Shaped", steps=2_048, run_dir=tmp_path / "shaped", quiet=True)
    assert shaped.result["mean_return"] == -200  # nobody gets up the mountain so soon
    assert shaped.result["learner_return"] > -200
    assert shaped.result["env"] == {"is_success": 0}
    corridor = runnel.train(
        "reinforce:Reinforce", "corridor:Corridor", steps=8_192, run_dir=tmp_path / "corridor", quiet=True
    )
    assert 0 < corridor.result["env"]["is_success"] <= 1
    for module in ("reinforce", "shaped", "corridor"):
        sys.modules.pop(module, None)


HERE = "tests/docs/test_examples.py"
SHORT = "--envs 2 --steps 64 --set unroll=8"
PPO = "minibatches=1 epochs=1 hidden=(4,)"
RUNS = {  # of pages whose commands run with the slow tests: the shortest run of each that uses all of it
    "equinox_network": f"train ppo CartPole-v1 {SHORT} {PPO} network=equinox_network:network",
    "nnx_network": f"train ppo CartPole-v1 {SHORT} {PPO} network=nnx_network:network",
    "own_networks": f"train ppo CartPole-v1 {SHORT} {PPO} network=own_networks:module",
    "recurrent": f"train recurrent:RecurrentReinforce corridor:Corridor {SHORT} memory_size=4",
    "halves": f"train halves:Halves corridor:Corridor {SHORT}",
    "lags": f"train lags:Lagging corridor:Corridor {SHORT}",
    "stages": f"train stages:NoisyRewards corridor:Corridor {SHORT}",
    "tag": f"train tag:OnlyOneLearns tag:Tag {SHORT} learner=runners",
    "windy": f"train ppo windy:windy_pendulum {SHORT} {PPO} env.wind=0.3",
    "failing": f"train reinforce:Reinforce failing:Failing {SHORT} env.fails=raises",
    "own_matchmaker": (
        "train ppo matrix:rock_paper_scissors --envs 4 --steps 256 --opponents own_matchmaker:Nemesis "
        f"--set unroll=8 opponents.every=64 {PPO}"
    ),
}

ELSEWHERE = {  # what else runs an example: a page of test_pages.FAST, or a test that is not slow
    **dict.fromkeys(("act_with_onnx", "act_with_stablehlo"), "docs/export.md"),
    "stop_when_good": "docs/use-a-policy.md",
    "file_transport": "tests/test_extension.py::test_a_transport_from_outside_carries_streams_and_parameters",
    "one_agent": "tests/test_extension.py::test_a_launcher_from_outside_starts_the_workers",
    "mixed_synchronisation": (
        "tests/execution/test_mixed_synchronisation.py::"
        "test_what_acts_waits_every_step_and_the_learner_does_not[CartPole-v1]"
    ),
    "two_step": "tests/algorithms/test_two_step.py::test_the_game_pays_as_in_the_paper",
    "slurm_job": "tests/launch/test_slurm.py::test_the_job_of_the_documentation_trains_then_resumes",
    **dict.fromkeys(
        ("reinforce", "shaped", "corridor"),
        f"{HERE}::test_the_environments_of_the_documentation_report_metrics_and_scores",
    ),
    **dict.fromkeys(("q_learning", "staged"), f"{HERE}::test_a_distribution_of_the_documentation_trains"),
    "recent": f"{HERE}::test_the_replay_of_the_documentation_draws_recent_items_more_often",
    "many_carts": f"{HERE}::test_the_vector_of_the_documentation_trains",
    "own_rule": f"{HERE}::test_a_population_by_a_rule_of_ones_own",
    "csv_sink": f"{HERE}::test_a_table_accepts_new_names_and_drops_what_is_repeated",
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory beside the examples, which are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield tmp_path
    for example in EXAMPLES.glob("*.py"):
        sys.modules.pop(example.stem, None)


@pytest.mark.parametrize("example", RUNS)
def test_an_example_trains(example, here, capsys):
    assert run_command(capsys, *RUNS[example].split(), "--quiet", "--run-dir", "run") == (0, "", "")
    found = json.loads((here / "run" / "result.json").read_text())
    assert (found["status"], found["updates"] > 0) == ("finished", True)
    assert bool(read_events(here / "run")) == (example == "failing")


def test_a_population_by_a_rule_of_ones_own(here):
    from own_rule import Tournament

    population = runnel.train_population(
        "reinforce:Reinforce", "corridor:Corridor", rule=Tournament(every=32), members=2, envs=2, steps=64,
        settings={"unroll": 8}, run_dir="population", quiet=True,
    )  # fmt: skip
    first = json.loads((population.run_dir / "lineage.jsonl").read_text().splitlines()[0])
    assert len(first["parents"]) == 2
    assert first["parents"][0] == first["parents"][1]


def test_a_table_accepts_new_names_and_drops_what_is_repeated(here):
    from csv_sink import CsvSink

    def table():
        with Path("run.csv").open(newline="") as file:
            return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]

    def recorded():
        records = [{**record, "curve": None} for record in read_metrics("run")]
        return [{name: value for name, value in record.items() if value is not None} for record in records]

    runnel.train(
        "reinforce:Reinforce", "corridor:Corridor", envs=2, steps=256, settings={"unroll": 4}, run_dir="run",
        quiet=True, checkpoint_every_s=1e-9, sinks=["csv_sink:beside"],
    )  # fmt: skip
    first = table()
    assert first == recorded()
    assert "env/is_success" in first[-1]
    assert "env/is_success" not in first[0]  # no episode had ended
    shutil.rmtree((here / "run" / "checkpoints" / "latest").resolve())
    runnel.resume("run", quiet=True, sinks=[CsvSink("run.csv")])
    assert table() == recorded()
    assert table()[0] == first[0]
    assert table()[-1]["env_steps"] == first[-1]["env_steps"]
    assert table()[-1] != first[-1]  # it was made again


SHORTER = {  # instead of what scripts show
    "first_steps.ipynb": {"20_000": "256", "unroll=32": "unroll=8, minibatches=1, epochs=1, hidden=(4,)"},
    "small_league.py": {
        "envs=64": "envs=8",
        "80_000": "1_024",
        "8192": "256",
        "episodes=200": "episodes=8",
        "quiet=True": 'quiet=True, settings={"unroll": 8, "minibatches": 1, "epochs": 1, "hidden": (4,)}',
    },
}


@pytest.mark.parametrize("name", SHORTER)
def test_a_script_runs(name, here):
    code = (EXAMPLES / name).read_text()
    if name.endswith(".ipynb"):
        code = "\n".join("".join(cell["source"]) for cell in json.loads(code)["cells"] if cell["cell_type"] == "code")
    for shown, less in SHORTER[name].items():
        assert shown in code
        code = code.replace(shown, less)
    exec(compile(code, name, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert all((run / "report.html").exists() for run in (here / "runs").iterdir())


def test_every_example_is_run_by_a_fast_test():
    scripts = {Path(name).stem for name in SHORTER}
    assert {path.stem for path in EXAMPLES.iterdir() if path.is_file()} == {*RUNS, *scripts, *ELSEWHERE}
    assert is_fast(f"{HERE}::test_an_example_trains")
    assert is_fast(f"{HERE}::test_a_script_runs")
    for example, place in ELSEWHERE.items():
        if place.startswith("docs/"):
            assert Path(place).name in FAST
            assert example in (ROOT / place).read_text()
        else:
            assert is_fast(place), f"{example}: {place} is slow, expected a test that is not"
            assert re.search(rf"\b{example}\b", needed_by(place)), f"{place} does not use {example}"


def test_a_test_with_slow_variants_does_not_pass_for_a_fast_one():
    assert not is_fast(
        "tests/launch/test_slurm.py::test_the_job_of_the_documentation_trains_and_resumes_on_this_machine"
    )
    mixed = "tests/execution/test_mixed_synchronisation.py::test_killed_workers_of_a_mixed_run_are_replaced"
    assert not is_fast(mixed)
    assert not is_fast(ELSEWHERE["mixed_synchronisation"].replace("CartPole-v1", "toys:Corridor"))
    assert "mixed_synchronisation" in needed_by(mixed)
    assert "one_agent" not in needed_by("tests/test_extension.py::test_what_is_no_transport_is_refused")
    with pytest.raises(KeyError):
        is_fast("tests/test_extension.py::test_that_there_is_not")


def is_fast(place):
    """Whether neither a test, nor a set of its parameters, nor its file is marked as slow; or one named set of them."""
    file, _, test = place.partition("::")
    name, _, parameters = test.rstrip("]").partition("[")
    found = definitions(file)
    marks = [*getattr(found[name], "decorator_list", []), *([found["pytestmark"]] if "pytestmark" in found else [])]
    listed = (ROOT / "tests" / "slow_variants.txt").read_text().splitlines()
    written = "\n".join(ast.unparse(mark) for mark in marks)
    assert parameters in written, f"{place} has no such parameters"
    return "slow" not in written and not any(
        line in (place, f"{file}::{name}") or (not parameters and line.startswith(f"{place}[")) for line in listed
    )


def needed_by(place):
    """The code of a test, and of all in its file that it names: fixtures, functions, constants."""
    file, _, test = place.partition("::")
    found, needed, names = definitions(file), [], [test.partition("[")[0]]
    while names:
        node = found.pop(names.pop(), None)
        if node is not None:
            needed.append(ast.unparse(node))
            names += [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
            names += [each.arg for each in ast.walk(node) if isinstance(each, ast.arg)]
    return "\n".join(needed)


def definitions(file):
    """What a file defines, by name."""
    found = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
    return found


def test_the_pictures_of_plans_are_what_runnel_plan_draws():
    tool = _tool("plan_pictures")
    assert set(tool.PICTURES) == {path.name for path in (ROOT / "docs" / "images").glob("*.svg")}
    for picture in tool.PICTURES:
        shown = (ROOT / "docs" / "images" / picture).read_text()
        assert tool.drawn(picture) == shown, f"{picture} is stale: run `python tools/plan_pictures.py`"
    for module in ("staged", "q_learning", "reinforce", "tag"):
        sys.modules.pop(module, None)


def test_every_picture_has_a_script_a_place_on_a_page_and_words():
    images = ROOT / "docs" / "images"
    by_script = {*_tool("pictures").PICTURES, *_tool("plan_pictures").PICTURES, "learning.png"}
    assert {path.name for path in images.iterdir()} == by_script
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = [
        found for page in pages for found in re.findall(r"!\[([^]]*)\]\((?:docs/)?images/([^)]+)\)", page.read_text())
    ]
    assert {name for _, name in shown} == by_script
    for words, name in shown:
        assert len(words.split()) >= 3, f"{name} is shown without saying what it shows"
        assert (images / name).stat().st_size < 600_000, f"{name} is too large for a page"


def test_pages_show_the_examples_as_they_are(tmp_path):
    embed = _tool("embed")
    pages = {page: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    shown = [block["file"] for text in pages.values() for block in embed.BLOCK.finditer(text)]
    assert {path.name for path in EXAMPLES.glob("*.[ps][yh]")} == {Path(name).name for name in shown}
    for notebook in EXAMPLES.glob("*.ipynb"):
        said = (f"(examples/{notebook.name})", f"jupyter notebook docs/examples/{notebook.name}")
        assert any(all(words in text for words in said) for text in pages.values()), (
            f"no page says how to open {notebook}"
        )
    for page, text in pages.items():
        assert embed.embedded(text, ROOT / "docs") == text, f"{page.name} is stale: run `make format`"
        assert "--8<--" not in text
    stale = "<!-- the file a.py -->\n```python\nold\n```\n\n```python\nnot of a file\n```\n"
    (tmp_path / "a.py").write_text("new = 1\n")
    assert embed.embedded(stale, tmp_path) == stale.replace("old\n", "new = 1\n")


def _tool(name):
    """A module of tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool
