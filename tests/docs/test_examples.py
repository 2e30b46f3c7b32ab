"""What the documentation shows works."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from paths import EXAMPLES, ROOT

import runnel


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
