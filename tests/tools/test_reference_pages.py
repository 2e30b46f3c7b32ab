"""The reference has every algorithm, setting, environment and public name that there is in the code."""

import importlib.util
import re

import pytest
from paths import ROOT

import runnel
from runnel import algorithms, distributions, envs
from runnel.algorithms.ppo import PPO
from runnel.config import setting_docs, settings

SPEC = importlib.util.spec_from_file_location("reference_pages", ROOT / "tools" / "reference_pages.py")
assert SPEC is not None
assert SPEC.loader is not None
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)

PAGES = {name: (ROOT / "docs" / f"reference-{name}.md").read_text() for name in tool.GENERATED}


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
    assert set(families) == {"Gymnasium", *(f"{family.prefix}NAME" for family in envs.FAMILIES)}
    assert "`env.sticky`" in families["ALE/NAME"]
    assert "Extra: `pgx`" in families["pgx:NAME"]


def test_every_public_name_once():
    built = tool.python()
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
