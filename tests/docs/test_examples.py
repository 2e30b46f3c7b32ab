"""What the documentation shows works."""

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

ELSEWHERE = {  # examples that other fast tests run: a page of test_pages.FAST, or a test
    "act_with_onnx": "docs/export.md", "act_with_stablehlo": "docs/export.md", "stop_when_good": "docs/use-a-policy.md",
    "file_transport": "tests/test_extension.py", "one_agent": "tests/test_extension.py",
    "mixed_synchronisation": "tests/execution/test_mixed_synchronisation.py",
    "two_step": "tests/algorithms/test_two_step.py", "slurm_job": "tests/launch/test_slurm.py",
}  # fmt: skip


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
    "small_league.py": {"80_000": "4_096", "8192": "1024", "episodes=200": "episodes=8"},
}


@pytest.mark.parametrize("name", ["first_steps.ipynb", pytest.param("small_league.py", marks=pytest.mark.slow)])
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
    here = Path(__file__).read_text()
    for example in EXAMPLES.iterdir():
        if example.is_file() and example.stem not in RUNS:
            place = ELSEWHERE.get(example.stem)
            assert example.stem in (here if place is None else (ROOT / place).read_text()), example.name
            assert place is None or not place.startswith("docs/") or Path(place).name in FAST


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
        assert any(f"(examples/{notebook.name})" in text for text in pages.values()), f"no page links to {notebook}"
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
