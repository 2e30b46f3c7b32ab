"""What there is to choose from, read without importing it."""

import pytest
from toys import Reinforce

from runnel import Discrete, algorithms, distributions
from runnel.cli import catalog
from runnel.config import setting_descriptions, setting_docs
from runnel.errors import UserError


def test_the_source_says_what_the_classes_say() -> None:
    for entry in catalog.algorithms():
        cls = algorithms.load(entry.name)
        assert [row.name for row in entry.settings] == [row.name for row in setting_docs.describe(cls)]
        assert [row.default for row in entry.settings] == [row.default for row in setting_docs.describe(cls)]
        assert entry.actions == tuple(kind.__name__ for kind in cls.actions)
        assert entry.summary
    for entry in catalog.distributions():
        described = setting_docs.describe(distributions.load(entry.name))
        assert entry.settings == tuple(described)
        assert entry.summary


def test_every_setting_is_described_in_a_line() -> None:
    for entry in [*catalog.algorithms(), *catalog.distributions()]:
        for row in entry.settings:
            assert 10 < len(row.doc) < 120, f"{entry.name}: {row.name} is described by '{row.doc}'"
    for entry in catalog.algorithms():  # by import, as a user's own
        rows = setting_docs.describe(algorithms.load(entry.name))
        assert [row.doc for row in rows] == [row.doc for row in entry.settings]


def test_a_shared_description_serves_runnels_classes_alone() -> None:
    entry = catalog.find("toys:Reinforce")
    assert [row.doc for row in entry.settings if row.name == "unroll"] == [""]
    used = {row.name for entry in [*catalog.algorithms(), *catalog.distributions()] for row in entry.settings}
    assert used >= {*setting_descriptions.ALGORITHMS, *setting_descriptions.DISTRIBUTIONS}


def test_every_name_is_there() -> None:
    assert [entry.name for entry in catalog.distributions()] == distributions.names()
    assert [entry.name for entry in catalog.algorithms()] == sorted([*algorithms.names(), *algorithms.ALIASES])
    assert {entry.name: entry.flags for entry in catalog.distributions()}["async"] == ("actors", "learners")


def test_ones_own_is_described_too() -> None:
    entry = catalog.find("toys:Reinforce")
    assert isinstance(entry, catalog.AlgorithmEntry)
    assert entry.actions == ("Discrete",)
    assert [row.name for row in entry.settings] == ["learning_rate", "unroll"]
    assert "learning_rate=0.01" in catalog.described(entry)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pp", "did you mean 'ppo'"),
        ("toys:Corridor", "neither an Algorithm nor a Distribution"),
        ("no:where", "no module"),
    ],
)
def test_what_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        catalog.find(name)


def test_tuned_settings_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.config.presets.TUNED", {("ppo", "CartPole-v1"): {"envs": 8, "hidden": (32, 32)}})
    assert "tuned for CartPole-v1\n  envs=8 hidden=32,32" in catalog.described(catalog.find("ppo"))


def test_a_type_that_has_a_name_is_shown_by_its_choices():
    types = {setting.name: setting.type for setting in catalog.find("impala").settings}
    assert types["memory"] == "none | gru | lstm"
    assert types["optimiser"] == "rmsprop | adam"


def test_what_is_listed_fits_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    entries = [*catalog.algorithms(), *catalog.distributions()]
    for entry in entries:
        assert max(map(len, catalog.described(entry).splitlines())) <= 100, entry.name


def test_a_table_wraps_its_last_column_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    rows = [("a", "one two three four five six seven eight nine"), ("long", "ten")]
    assert catalog.table(rows) == ["  a     one two three four five six seven", "        eight nine", "  long  ten"]


class NamedActions(Reinforce):
    actions = ("Discrete",)


class OneAction(Reinforce):
    actions = Discrete


def test_actions_that_training_refuses_are_listed_as_they_are() -> None:
    shown = [catalog.described(catalog.find(f"{__name__}:{cls.__name__}")) for cls in (NamedActions, OneAction)]
    assert [text.splitlines()[1] for text in shown] == ["actions: 'Discrete'", "actions: Discrete"]
