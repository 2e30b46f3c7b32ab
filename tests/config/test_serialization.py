"""Algorithms and distributions written to a run directory and read back."""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from paths import ROOT

from runnel.config import serialization
from runnel.errors import UserError


class Thing:
    """Stands for `Algorithm`."""


class Network(NamedTuple):
    init: Any
    apply: Any


class Opaque:
    """An object with no fields that JSON could hold."""


@dataclass(frozen=True)
class Holder:
    """Has one setting."""

    value: Any


@dataclass(frozen=True)
class Buffer:
    capacity: int


@dataclass(frozen=True)
class Example(Thing):
    rate: float = 0.5
    sizes: tuple[int, ...] = (64, 64)
    limit: float = math.inf
    extra: Any = None


def initial(key: Any) -> Any:
    return key


def applied(params: Any) -> Any:
    return params


OPAQUE = Opaque()
CLOSURES = Network(lambda key: key, lambda params: params)


def there_and_back(instance: Any) -> Any:
    text = json.dumps(serialization.to_json(instance), allow_nan=False)
    return serialization.from_json(json.loads(text), Thing)


@pytest.mark.parametrize(
    "extra",
    [
        None,
        True,
        "text",
        (1, (2.5, None)),
        [1, 2],
        {"a": (1,)},
        Buffer(10),
        initial,
        Network(initial, applied),
        Opaque,
    ],
)
def test_settings_come_back_as_they_were(extra: Any) -> None:
    instance = Example(rate=0.1, sizes=(1, 2), extra=extra)
    assert there_and_back(instance) == instance
    assert type(there_and_back(instance).extra) is type(extra)


@pytest.mark.parametrize("extra", [OPAQUE, CLOSURES])
def test_an_object_comes_back_by_its_name_in_a_module(extra: Any) -> None:
    assert there_and_back(Example(extra=extra)).extra is extra


@pytest.mark.parametrize("extra", [Opaque(), lambda x: x, Network(lambda key: key, applied)])
def test_an_object_without_a_name_can_be_written_but_not_read(extra: Any) -> None:
    data = json.loads(json.dumps(serialization.to_json(Example(extra=extra))))
    assert "cannot be resumed" in (serialization.reason(data) or "")
    with pytest.raises(UserError, match="cannot be resumed"):
        serialization.from_json(data, Thing)


def test_a_local_class_can_be_written_but_not_read() -> None:
    @dataclass(frozen=True)
    class Local(Thing):
        rate: float = 0.5

    with pytest.raises(UserError, match=r"class .*Local.* cannot be resumed"):
        serialization.from_json(serialization.to_json(Local()), Thing)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"class": "os:system", "settings": {}}, "'os:system' of Python's standard library"),
        ({"class": f"{__name__}:Buffer", "settings": {"capacity": 1}}, "is no Thing"),
        ({"class": f"{__name__}:Exampel", "settings": {}}, "did you mean 'Example'"),
        ({"class": "nowhere.at_all:Example", "settings": {}}, "there is no module 'nowhere.at_all'"),
        ({"class": "Example", "settings": {}}, "expected package.module:name"),
        ({"class": f"{__name__}:Example", "settings": {"rat": 1}}, "has no setting 'rat'"),
        ({"class": "/nowhere/file.py:Example", "settings": {}}, "there is no file '/nowhere/file.py'"),
        (
            {"class": f"{__name__}:Example", "settings": {"extra": {"class": "numpy:zeros", "settings": {}}}},
            "no dataclass",
        ),
        ({}, "expected a Thing"),
        (None, "expected a Thing"),
    ],
)
def test_what_is_not_expected_is_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        serialization.from_json(data, Thing)
    assert message in str(error.value)


def test_a_class_of_a_script_is_found_again_through_its_file(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import json, sys\n"
        "from dataclasses import dataclass\n"
        "from runnel.config import serialization\n"
        "@dataclass(frozen=True)\n"
        "class Own:\n"
        "    rate: float = 0.5\n"
        "if __name__ == '__main__':\n"
        "    data = serialization.to_json(Own(0.25))\n"
        "    assert serialization.from_json(data, Own) == Own(0.25)\n"
        "    print(json.dumps(data))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    data = json.loads(printed)
    assert data["class"] == f"{script}:Own"
    assert serialization.from_json(data, object).rate == 0.25  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import math\n\nLIMIT = 1 / 0\n", "ZeroDivisionError: division by zero (FILE, line 3)"),
        ("def broken(:\n    pass\n", "SyntaxError: invalid syntax (FILE, line 1)"),
        ("import json\njson.loads('{')\n", "JSONDecodeError: Expecting property name enclosed in double quotes"),
        ("import json\n\njson.loads('{')\n", "(FILE, line 3)"),
        ("\nimport no_such_package_at_all\n", "no_such_package_at_all"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_an_error_in_a_users_module_names_file_and_line(
    source: str, reason: str, by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash((source, by_file)))}"
    file = tmp_path / f"{name}.py"
    file.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError) as caught:
        serialization.import_object(f"{file if by_file else name}:Thing")
    assert "cannot be imported: " in str(caught.value)
    assert reason.replace("FILE", str(file)) in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("value", [3, 0.5, math.inf, "adam", True, None, (1, (2.0, "x")), [1, (2,)], {"a": (1, 2)}])
def test_a_plain_value_is_read_without_importing_anything(value: Any) -> None:
    stored = serialization.to_json(Holder(value))["settings"]["value"]
    assert serialization.plain_value(stored) == value


@pytest.mark.parametrize(
    "data",
    [
        {"object": "os:system"}, {"class": "os:system", "settings": {}}, {"list": [{"object": "os:system"}]},
        {"unavailable": "a lambda"}, {"float": "many"}, {"list": 3},
    ],
)  # fmt: skip
def test_a_value_that_names_code_or_cannot_be_read_is_refused_as_plain(data: Any) -> None:
    with pytest.raises(UserError, match=r"^found .*, (expected a setting that names no code|which cannot be read)"):
        serialization.plain_value(data)
