"""The reference has every algorithm, setting, environment and public name that there is in the code."""

import importlib.util
import re
import subprocess
import sys

import pytest
from commands import run_command
from paths import ROOT

import runnel
from runnel import algorithms, distributions, envs
from runnel.algorithms.ppo import PPO
from runnel.cli import environment_names, pages, reference
from runnel.config import setting_docs, settings

SPEC = importlib.util.spec_from_file_location("reference_pages", ROOT / "tools" / "reference_pages.py")
assert SPEC is not None
assert SPEC.loader is not None
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = {name: (ROOT / "docs" / f"reference-{name}.md").read_text() for name in (*reference.GENERATED, "python")}


def sections(name):
    """By its title, the text of each section of a page as it is built."""
    built = tool.on_page_markdown(PAGES[name], page=None, config=None, files=None)
    assert "generated:" not in built
    return dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", built, re.M | re.S))


def test_every_algorithm_with_every_setting():
    found = sections("algorithms")
    assert set(found) == {*algorithms.REGISTRY, *algorithms.ALIASES}
    for name in algorithms.REGISTRY:
        shown = re.findall(r"^\| `(\w+)` \| `", found[name], re.M)
        assert shown == [row.name for row in setting_docs.describe(algorithms.load(name))]
    (row,) = re.findall(r"^\| `learning_rate` .*$", found["ppo"], re.M)
    assert f"`{settings.default_text(PPO().learning_rate)}`" in row
    assert re.search(r"^\| `CartPole-v1` \| .*`unroll=128`", found["ppo"], re.M)
    assert "| `optimiser` | `rmsprop` or `adam` | `rmsprop` |" in found["a2c"]
    assert all(line.replace(r"\|", "").count("|") in (3, 5) for line in found["ppo"].splitlines() if line[:1] == "|")


def test_every_distribution_and_every_family():
    found = sections("distributions")
    assert set(found) == set(distributions.REGISTRY)
    assert "`--actors`" in found["coarse"]
    families = sections("environments")
    of_all = "Settings of all environments"
    assert set(families) == {of_all, "Gymnasium", *(f"{family.prefix}NAME" for family in envs.FAMILIES)}
    assert all(f"`env.{name}`" in families[of_all] for name in environment_names.OF_ALL)
    assert "`CartPole-v1`" in families["Gymnasium"]
    assert "`matrix:prisoners_dilemma`" in families["matrix:NAME"]
    assert all(f"`runnel list {family.prefix}`" in families[f"{family.prefix}NAME"] for family in envs.FAMILIES)
    assert "`env.sticky`" in families["ALE/NAME"]
    assert "Extra: `pgx`" in families["pgx:NAME"]


def test_every_public_name_once():
    built = reference.python(DOCS)
    rows = dict(re.findall(r"^\| \[`runnel\.(\w+)`\]\(([^)]*)\) \| \S", built, re.M))
    assert set(rows) == set(runnel.__all__) - {"__version__"}, "a name without a row, or without a docstring"
    here = re.findall(r"^::: (\S+)", built, re.M)
    assert {link.removeprefix("#") for link in rows.values() if link.startswith("#")} == set(here)
    assert rows["train"] == "command-line.md#runnel.execution.training.train"
    assert len(here) == len(set(here)) > 20


def test_a_page_that_asks_for_what_there_is_not_is_found():
    with pytest.raises(KeyError):
        tool.on_page_markdown("<!-- generated: nothing -->")
    assert tool.on_page_markdown("as it is") == "as it is"


def test_help_has_the_settings_with_their_descriptions(capsys):
    for name, setting in (("algorithms", "learning_rate"), ("distributions", "env_splits")):
        text = pages.text(f"reference-{name}")
        assert "generated:" not in text
        assert re.search(rf"^\| `{setting}` \|.*\| \w[^|]{{20,}} \|$", text, re.M)
    section = pages.text("reference-algorithms#sac")
    assert section.startswith("## sac")
    assert "target_entropy" in section
    ended = run_command(capsys, "help", "reference-algorithms")
    shown = " ".join(ended.out.split())
    assert "learning_rate" in shown
    assert "step size of the" in shown


def test_an_adapter_describes_each_of_its_settings():
    for family in envs.FAMILIES:
        table = reference.adapter_settings(family.adapter)
        for row in re.findall(r"^\| `env\..*$", table, re.M):
            assert not row.endswith("|  |"), f"{family.prefix}: {row}"


def test_help_of_python_has_signatures_and_docstrings_in_place_of_directives():
    for page in ("reference-python", "command-line", "populations"):
        assert ":::" not in pages.text(page)
    text = pages.text("reference-python")
    assert re.search(r"^\| \[`runnel\.train`\]\(command-line\.md#.*\| Trains until", text, re.M)
    assert "class Discrete:\n    n: int" in text
    assert "Whole numbers 0 to n - 1." in text
    assert "def " not in reference.definition_text("runnel.execution.training.train").partition("Trains until")[0]


def test_the_reference_of_algorithms_needs_no_jax():
    code = "import sys\nfrom runnel.cli import pages\nfor name in ('algorithms', 'distributions'):\n"
    code += "    pages.text(f'reference-{name}')\nassert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("installed", [False, True])
def test_a_family_whose_names_are_not_there_says_how_to_list_them(installed, monkeypatch):
    family = envs.FAMILIES[0]._replace(package="json" if installed else "no_such_package_at_all")
    assert "`runnel list ALE/` names its environments" in reference.family_names(family, family.prefix)
