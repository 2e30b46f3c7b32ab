"""Messages that are dataclasses: what is wrong with one that another process sent is said in words."""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from runnel.config.json_messages import JsonMessage, parse
from runnel.errors import MalformedMessage


@dataclass(frozen=True)
class Place:
    host: str
    port: int


@dataclass(frozen=True)
class MoveTo(JsonMessage):
    place: Place
    speed: float = 1.0
    mode: Literal["walk", "run"] = "walk"
    stops: tuple[int, ...] = ()
    pair: tuple[str, int] | None = None
    tags: dict[str, list[int]] | None = None
    code: int | str = 0
    more: Any = None


@dataclass(frozen=True)
class Halt(JsonMessage):
    pass


HERE = {"host": "a", "port": 1}


def test_a_message_is_an_object_with_its_type_in_snake_case() -> None:
    assert Halt().to_json() == {"type": "halt"}
    assert parse({"type": "halt"}, MoveTo | Halt) == Halt()
    assert MoveTo(Place("a", 1)).to_json()["type"] == "move_to"


def test_nested_values_become_what_the_annotations_say() -> None:
    value = {
        "type": "move_to", "place": HERE, "speed": 2, "stops": [1, 2], "pair": ["x", 3], "tags": {"a": [1]},
        "code": "z", "more": {"any": [None, 1.5]},
    }  # fmt: skip
    found = parse(value, MoveTo | Halt)
    assert found == MoveTo(Place("a", 1), 2.0, "walk", (1, 2), ("x", 3), {"a": [1]}, "z", {"any": [None, 1.5]})
    assert type(found.speed) is float
    assert parse(found.to_json(), MoveTo | Halt) == found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, "found a message of type None, expected one of halt, move_to"),
        ({"type": "fly"}, "found a message of type 'fly', expected one of halt, move_to"),
        ({"type": ["halt"]}, r"found a message of type \['halt'\], expected one of"),
        ({"type": "halt", "now": 1}, r"message 'halt': found unknown fields \['now'\], expected the fields \(none\)"),
        ({"type": "move_to"}, "message 'move_to': found no place, expected the fields place, speed, mode"),
        ({"type": "move_to", "place": 3}, "message 'move_to', field 'place': found 3, expected an object"),
        ({"type": "move_to", "place": {"host": "a"}}, "field 'place': found no port, expected the fields host, port"),
        ({"type": "move_to", "place": {**HERE, "port": True}}, "field 'port': found True, expected int"),
        ({"type": "move_to", "place": HERE, "speed": "fast"}, "field 'speed': found 'fast', expected float"),
        ({"type": "move_to", "place": HERE, "speed": "f" * 200}, r"found 'f{59}\.\.\., expected float"),
        ({"type": "move_to", "place": HERE, "mode": "fly"}, r"found 'fly', expected Literal\['walk', 'run'\]"),
        ({"type": "move_to", "place": HERE, "stops": [1, "2"]}, "field 'stops': found '2', expected int"),
        ({"type": "move_to", "place": HERE, "pair": ["x"]}, r"found \['x'\], expected tuple\[str, int\]"),
        ({"type": "move_to", "place": HERE, "tags": {"a": 1}}, r"field 'tags': found 1, expected list\[int\]"),
        ({"type": "move_to", "place": HERE, "code": 1.5}, "field 'code': found 1.5, expected int or str"),
    ],
)
def test_a_malformed_message_is_refused_in_words(value: dict[str, Any], words: str) -> None:
    with pytest.raises(MalformedMessage, match=words):
        parse(value, MoveTo | Halt)
