"""The page for users of other libraries: both sides of a pair train as long, keep the policy and act with it."""

import importlib.metadata
import re
import tomllib

import pytest
from pages import blocks
from paths import ROOT

FILE = ROOT / "docs" / "coming-from.md"
PAGE = FILE.read_text()
LIBRARIES = ("Stable-Baselines3", "CleanRL", "RLlib", "PureJaxRL", "Sample Factory")
STEPS = re.compile(
    r"(?:total_timesteps=|--total-timesteps |\"TOTAL_TIMESTEPS\": |--train_for_env_steps=|\bsteps=|--steps )([\d_]+)"
)
ACTS = re.compile(r"predict\(|argmax\(|\.mode\(\)|enjoy_gym_env|policy\.act\(|runnel eval")
KEEPS = re.compile(r"model\.save\(|torch\.save\(|save_to_path\(|write_bytes\(|--experiment=|run_dir=|--run-dir ")


def section(library):
    """The blocks of a library's section: theirs, and Runnel's."""
    before, _, text = PAGE.partition(f"\n## {library}\n")
    first = before.count("\n") + 1
    last = first + text.partition("\n## ")[0].count("\n") + 1
    found = [block for block in blocks(FILE) if first < block.line <= last]
    theirs = [block for block in found if {"not run", "needs"} & block.said.keys()]
    return tuple("\n".join(block.text for block in found if (block in theirs) is side) for side in (True, False))


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_sides_train_keep_and_act(library):
    for side in section(library):
        assert KEEPS.search(side)
        assert ACTS.search(side)
        assert "CartPole-v1" in side


@pytest.mark.parametrize("library", LIBRARIES)
def test_both_sides_train_for_as_many_steps(library):
    theirs, ours = section(library)
    if library == "RLlib":
        assert "for _ in range(10)" in theirs
        assert "train_batch_size_per_learner=2048" in theirs
        assert "steps=10 * 2048" in ours
        return
    found = [{int(number) for number in STEPS.findall(side)} for side in (theirs, ours)]
    assert len(found[0]) == 1
    assert found[0] == found[1]


def test_every_library_has_a_version():
    versions = dict(re.findall(r"^\| ([\w -]+) \| (\d[\w.]*|a checkout)", PAGE, re.M))
    assert set(versions) == set(LIBRARIES)
    assert importlib.metadata.version("ray").startswith(f"{versions['RLlib']}.")


def test_the_page_says_which_sides_are_run():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        extra
        for extra, packages in project["optional-dependencies"].items()
        if any(package.startswith("stable-baselines3") for package in packages)
    ]
    assert extras == ["bench"]
    assert "which the extra `bench` does\nand the environment of the tests (`dev`) does not" in PAGE
    for library in LIBRARIES[1:]:
        start = PAGE.index(f"\n## {library}\n")
        assert "<!-- not run: needs " in PAGE[start : start + 600]
