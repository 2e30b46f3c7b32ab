"""Messages as frozen dataclasses: written as JSON objects, and checked field by field when they are read.

    @dataclass(frozen=True)
    class Pause(JsonMessage):
        at_iteration: int = 0

    Pause(3).to_json()                                 # {"type": "pause", "at_iteration": 3}
    parse({"type": "pause", "at_iteration": 3}, Pause | Stop)

A field may be a bool, int, float, str, None, `Any` (as it is in JSON), a `Literal`, a dataclass, a named tuple (a list
in JSON), another message, and lists, tuples, unions and dicts (with text as keys) of these. Nothing that is read is
executed. Standard library only: every worker imports this.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from runnel.errors import MalformedMessage

_SHOWN = 60
"""The characters of a wrong value that an error quotes."""


class JsonMessage:
    """Base of all messages, each a frozen dataclass. The class's name, in snake case, is the message's type."""

    @classmethod
    def type_name(cls) -> str:
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `parse` reads."""
        assert dataclasses.is_dataclass(self)
        own = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"type": self.type_name(), **own}


def parse(value: Mapping[str, Any], family: Any) -> Any:
    """The message that a JSON object holds: one of the classes of `family`, a union.

    Raises `MalformedMessage`, which names the message and what is wrong with it.
    """
    known = _by_name(family)
    name = value.get("type")
    if not isinstance(name, str) or name not in known:
        raise MalformedMessage(f"found a message of type {_quote(name)}, expected one of {', '.join(sorted(known))}")
    rest = {key: each for key, each in value.items() if key != "type"}
    return _dataclass(rest, known[name], f"message '{name}'")


@cache
def _by_name(family: Any) -> dict[str, type[JsonMessage]]:
    return {kind.type_name(): kind for kind in get_args(family) or (family,)}


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _plain(value: Any) -> Any:
    """As JSON has it; values of type `Any` must be so already."""
    if isinstance(value, JsonMessage):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _dataclass(value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise MalformedMessage(f"{where}: found {_quote(value)}, expected an object")
    hints = _types(kind)
    needed = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    unknown, missing = sorted(map(str, set(value) - set(hints))), sorted(needed - set(value))
    if unknown or missing:
        found = f"found unknown fields {_quote(unknown)}" if unknown else f"found no {', '.join(missing)}"
        raise MalformedMessage(f"{where}: {found}, expected the fields {', '.join(hints) or '(none)'}")
    return kind(**{name: _read(each, hints[name], f"{where}, field '{name}'") for name, each in value.items()})


def _read(value: Any, kind: Any, where: str) -> Any:
    """A value of an annotated type, from JSON."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if all(isinstance(each, type) and issubclass(each, JsonMessage) for each in inner or (kind,)):
        return parse(value, kind) if isinstance(value, Mapping) else _dataclass(value, kind, where)
    if origin in (Union, types.UnionType):
        return _one_of(value, inner, where)
    if dataclasses.is_dataclass(kind):
        return _dataclass(value, kind, where)
    if _is_named_tuple(kind):
        return kind(*_read(value, tuple[tuple(_types(kind).values())], where))
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, int, str, types.NoneType) and type(value) is kind:
        return value
    if origin is Literal and value in inner:
        return value
    if origin is dict and isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: _read(each, inner[1], where) for key, each in value.items()}
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        repeated = origin is list or inner[1:] == (...,)
        if repeated or len(value) == len(inner):
            kinds = [inner[0]] * len(value) if repeated else inner
            return origin(_read(each, own, where) for each, own in zip(value, kinds, strict=True))
    raise MalformedMessage(f"{where}: found {_quote(value)}, expected {_describe(kind)}")


def _one_of(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    if value is None and types.NoneType in kinds:
        return None
    others = [kind for kind in kinds if kind is not types.NoneType]
    if len(others) == 1:  # what is wrong with it is said of this one
        return _read(value, others[0], where)
    for kind in others:
        try:
            return _read(value, kind, where)
        except MalformedMessage:
            continue
    raise MalformedMessage(f"{where}: found {_quote(value)}, expected {' or '.join(map(_describe, kinds))}")


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _describe(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
