"""Populations in pictures."""

import json
from pathlib import Path

import pytest

from runnel.errors import UserError
from runnel.recording import members_file, population_file
from runnel.recording.members_file import Member
from runnel.recording.population_file import PopulationConfig, Round
from runnel.reporting import lineage
from runnel.reporting.plot import plot


@pytest.fixture
def population(tmp_path: Path) -> Path:
    """Three members; after 100 steps 2 became a copy of 0, and after 200 steps 1 of 2, which is the best in the end."""
    directory = tmp_path / "population"
    members = [Member(members_file.name_of(k, 3), k, {}) for k in range(3)]
    for k, member in enumerate(members):
        own = directory / member.directory
        own.mkdir(parents=True)
        described = {"class": "runnel.algorithms.ppo:PPO", "settings": {"learning_rate": 0.1}}
        environment, distribution = {"name": "CartPole-v1", "settings": {}}, {"class": "x:Fused", "settings": {}}
        config = {"algorithm": described, "environment": environment, "distribution": distribution, "seed": k}
        (own / "config.json").write_text(json.dumps(config))
        lines = [{"env_steps": steps, "mean_return": steps * (k + 1)} for steps in (100, 200, 300)]
        (own / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    members_file.write(directory, members)
    begin = [{"learning_rate": rate, "discount": 0.9} for rate in (0.1, 0.01, 0.001)]
    first = [begin[0], begin[1], {"learning_rate": 0.08, "discount": 0.9}]
    second = [first[0], {"learning_rate": 0.1, "discount": 0.9}, first[2]]
    population_file.write(directory, PopulationConfig(300, 0, {}, begin, 2))
    population_file.write_lineage(
        directory,
        [Round(1, 100, [3.0, 2.0, None], [2], [0, 1, 0], first), Round(2, 200, [1.0, 0.0, 2.0], [], [0, 2, 2], second)],
    )
    result = {"members": 3, "finished": 3, "env_steps": 900, "wall_seconds": 1.0, "runs": [], "best": {"member": 1}}
    (directory / "result.json").write_text(json.dumps(result))
    return directory


def test_ancestors_are_those_whose_state_the_best_one_has(population: Path) -> None:
    found = lineage.read(population, "mean_return")
    assert found.ancestors() == [0, 2, 1]
    assert found.env_steps == [0, 100, 200, 300]
    assert found.names == ["learning_rate"], "settings that are the same for all are not drawn"


def test_settings_and_copies_are_drawn(population: Path) -> None:
    figure = lineage.draw(lineage.read(population, "mean_return"), "return", str)
    above, below = figure.axes
    assert [text.get_text() for text in above.get_legend().get_texts()] == [
        "members",
        "ancestors of the best",
        "copied",
    ]
    copies = [line.get_ydata().tolist() for line in below.lines if line.get_color() == lineage.COPY]
    assert copies == [[0.1, 0.08], [0.08, 0.1]], "from the parent's setting to the copy's"
    assert below.get_yscale() == "log"


def test_a_population_alone_is_drawn_as_its_members(population: Path, tmp_path: Path) -> None:
    alone = plot([population], tmp_path / "alone.svg").read_text()
    both = plot([population, population / "member-0"], tmp_path / "both.svg").read_text()
    assert "ancestors of the best" in alone
    assert "ancestors of the best" not in both


def test_a_population_without_curves_is_said_to_have_none(population: Path, tmp_path: Path) -> None:
    for path in population.glob("member-*/metrics.jsonl"):
        path.unlink()
    with pytest.raises(UserError, match=r"no member of .* has a curve yet"):
        plot([population], tmp_path / "alone.svg")
