"""Settings from text: what is taken, and what is said of what is not."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from runnel.config import setting_docs, settings
from runnel.errors import UserError


@dataclass(frozen=True)
class Base:
    """Something with settings."""

    kind: ClassVar[str] = "not a setting"

    learning_rate: float = 3e-4  # of Adam
    unroll: int = 128
    """Steps between
    updates."""


@dataclass(frozen=True)
class Example(Base):
    """More of them."""

    normalise: bool = True
    hidden: tuple[int, ...] = (64, 64)
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    schedule: Literal["constant", "linear"] = "constant"
    name: str = "x"
    network: Any = None  # init and apply
    tags: tuple[str, ...] = field(default_factory=tuple)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("learning_rate=1e-3", 1e-3),
        ("learning_rate=1", 1.0),
        ("unroll=1_000", 1000),
        ("unroll=1e3", 1000),
        ("normalise=false", False),
        ("normalise=Yes", True),
        ("hidden=256,128", (256, 128)),
        ("hidden=(256, 128)", (256, 128)),
        ("hidden=32", (32,)),
        ("hidden=()", ()),
        ("betas=0.5,0.9", (0.5, 0.9)),
        ("clip=0.5", 0.5),
        ("clip=none", None),
        ("schedule=linear", "linear"),
        ("name=a=b", "a=b"),
        ("tags=a,b", ("a", "b")),
        ("network=math:sqrt", __import__("math").sqrt),
    ],
)
def test_text_becomes_a_value_of_the_fields_type(pair: str, value: Any) -> None:
    (found,) = settings.parse(Example, [pair]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("learning_rate=fast", "learning_rate=fast: found text 'fast', expected a number"),
        ("learning_rate=inf", "learning_rate=inf: found inf, expected a finite number"),
        ("learning_rate=nan", "learning_rate=nan: found nan, expected a finite number"),
        ("learning_rate=", "learning_rate=: found nothing, expected a number"),
        ("unroll=2.5", "unroll=2.5: found 2.5, expected a whole number"),
        ("unroll=inf", "unroll=inf: found inf, expected a whole number"),
        ("normalise=2", "normalise=2: found 2, expected true or false"),
        ("hidden=64,x", "hidden=64,x: found text '64,x', expected a list such as 64,64, each a whole number"),
        ("betas=0.9", "betas=0.9: found 0.9, expected a list of 2"),
        ("clip=off", "clip=off: found text 'off', expected a number or none"),
        ("schedule=cosine", "schedule=cosine: found text 'cosine', expected constant or linear"),
        ("learning_rat=1", "Example has no setting 'learning_rat'; did you mean 'learning_rate'?"),
        ("kind=a", "Example has no setting 'kind'"),
        ("unroll", "found 'unroll', expected key=value"),
        ("=3", "found '=3', expected key=value"),
        ("network=mlp", "network=mlp: found text 'mlp', expected an object's import path"),
        ("network=nowhere:mlp", "there is no module 'nowhere'"),
    ],
)
def test_a_mistake_is_reported_in_one_line(pair: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        settings.parse(Example, [pair])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_last_value_of_a_key_wins() -> None:
    assert settings.parse(Example, ["unroll=1", "unroll=2"]) == {"unroll": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("none", None), ("(1, 2)", (1, 2)), ("ansi", "ansi"), ("", "")],
)
def test_a_setting_of_unknown_type_is_what_it_looks_like(text: str, value: Any) -> None:
    assert settings.literal(text) == value
    assert type(settings.literal(text)) is type(value)


def test_settings_given_in_python_are_checked_too() -> None:
    settings.check(Example(learning_rate=1, clip=0.5, network=object()))
    for wrong, wanted in [
        ({"learning_rate": "fast"}, "Example(learning_rate='fast'): found text 'fast', expected a number"),
        ({"learning_rate": float("nan")}, "expected a finite number"),
        ({"unroll": 2.5}, "expected a whole number"),
        ({"unroll": True}, "expected a whole number"),
        ({"normalise": 1}, "expected True or False"),
        ({"hidden": [64]}, "expected a tuple"),
        ({"hidden": (64, 0.5)}, "expected a tuple, each a whole number"),
        ({"clip": "x"}, "expected a number or None"),
        ({"schedule": "cosine"}, "expected 'constant' or 'linear'"),
    ]:
        with pytest.raises(UserError) as error:
            settings.check(Example(**wrong))
        assert wanted in str(error.value)


@dataclass(frozen=True)
class TextForANumber:
    unroll: int = "32"  # type: ignore[assignment]


def test_a_default_of_text_where_a_number_is_expected_is_refused() -> None:
    with pytest.raises(UserError, match=r"TextForANumber\(unroll='32'\): found text '32', expected a whole number"):
        settings.check(TextForANumber())


def test_fields_are_described_by_what_stands_beside_them() -> None:
    rows = {row.name: row for row in setting_docs.describe(Example)}
    assert rows["learning_rate"] == ("learning_rate", "float", "0.0003", "of Adam")
    assert rows["unroll"].doc == "Steps between updates."
    assert rows["hidden"][1:3] == ("tuple[int, ...]", "64,64")
    assert rows["clip"][1:3] == ("float | none", "none")
    assert rows["schedule"][1:3] == ("constant | linear", "constant")
    assert rows["network"].doc == "init and apply"
    assert "kind" not in rows


# Subclasses


@dataclass(frozen=True)
class Parent:
    rate: float = 0.1
    size: int = 4


class Undecorated(Parent):
    extra: int = 3


class Constant(Parent):
    rate = 0.5


@dataclass(frozen=True)
class Unannotated(Parent):
    rate = 0.5  # type: ignore[misc]


@dataclass(frozen=True)
class Proper(Parent):
    kinds: ClassVar = ("a",)

    rate: float = 0.5
    extra: int = 3


class Plain(Proper):
    """Adds nothing but behaviour."""

    kinds = ("b",)
    _cache: ClassVar[dict[str, int]] = {}

    def double(self) -> float:
        return 2 * self.rate


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Undecorated, r"Undecorated has fields \(extra\) .*write @dataclass\(frozen=True\) above class Undecorated"),
        (Constant, r"Constant\.rate = \.\.\. has no type, .* default of its base class stays"),
        (Unannotated, r"Unannotated\.rate = \.\.\. has no type"),
    ],
)
def test_a_field_that_would_be_dropped_silently_is_refused(cls: type, words: str) -> None:
    with pytest.raises(UserError, match=words):
        settings.hints_of(cls)


def test_subclasses_that_declare_their_fields_or_add_none_are_taken() -> None:
    assert list(settings.hints_of(Proper)) == ["rate", "size", "extra"]
    assert list(settings.hints_of(Plain)) == ["rate", "size", "extra"]
