"""Reads and checks the fields of a dataclass: from `key=value` text, and from Python values."""

from __future__ import annotations

import dataclasses
import inspect
import math
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from runnel import deprecated
from runnel.config.serialization import import_object
from runnel.errors import UserError, nearest

# From text


def parse(cls: type, pairs: Iterable[str], what: str = "") -> dict[str, Any]:
    """`["learning_rate=1e-3"]` -> `{"learning_rate": 0.001}`, by the annotations of a dataclass.

    `what` names the class to the user; the last of several values for one key wins.
    """
    hints, renamed = hints_of(cls), deprecated.renamed_fields(cls)
    values = {}
    for pair in pairs:
        key, text = split(pair)
        if key in renamed:
            deprecated.warn(f"setting '{key}' of {what or cls.__name__}", f"'{renamed[key]}'")
            key = renamed[key]
        if key not in hints:
            raise UserError(
                f"{what or cls.__name__} has no setting '{key}'{nearest(key, hints)}", page="command-line#settings"
            )
        values[key] = convert(key, text, hints[key])
    return values


def split(pair: str) -> tuple[str, str]:
    """`"key=value"` -> `("key", "value")`."""
    key, equals, text = pair.partition("=")
    if not equals or not key.strip():
        raise UserError(f"found '{pair}', expected key=value", page="command-line#settings")
    return key.strip(), text.strip()


def convert(key: str, text: str, annotation: Any) -> Any:
    """Reads `text` as a value of the type `annotation`. Raises UserError if it does not fit."""
    try:
        return _read(text, annotation)
    except _Mismatch as mismatch:
        raise UserError(
            f"{key}={_short(text)}: found {_found(_short(text))}, expected {mismatch}", page="command-line#settings"
        ) from None
    except RecursionError:
        raise UserError(f"{key}={_short(text)}: found brackets in brackets without end, expected a value") from None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


def literal(text: str) -> Any:
    """Reads `text` without a known type: as a number, true, none or a tuple, otherwise as text."""
    for annotation in (int, float, bool, None):
        try:
            return _read(text, annotation)
        except _Mismatch:
            continue
    if text[:1] in ("(", "["):
        try:
            return tuple(literal(part) for part in _parts(text))
        except RecursionError:
            raise UserError(f"found brackets in brackets without end ({_short(text)}), expected a value") from None
    return text


class _Mismatch(Exception):
    """The text does not fit the annotation; the message describes the expected type."""


def _read(text: str, wanted: Any) -> Any:
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is bool:
        return _read_bool(text)
    if wanted is int:
        return _read_int(text)
    if wanted is float:
        return _read_float(text)
    if wanted is str:
        return text
    if wanted in (None, type(None)):
        if text.lower() not in ("none", "null"):
            raise _Mismatch("none")
        return None
    if origin is Literal:
        for choice in arguments:
            if text == str(choice):
                return choice
        raise _Mismatch(_or(str(choice) for choice in arguments))
    if origin in (typing.Union, types.UnionType):
        return _read_union(text, arguments)
    if origin is tuple:
        return _read_tuple(text, arguments)
    # Other values of a field (a network, a function) are named by their import path.
    if text.lower() == "none":
        return None
    if ":" not in text:
        raise _Mismatch("an object's import path, such as package.module:name")
    return import_object(text)


def _read_bool(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise _Mismatch("true or false")


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)  # 1e6
    except ValueError:
        raise _Mismatch("a whole number") from None
    if not number.is_integer():
        raise _Mismatch("a whole number")
    return int(number)


def _read_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _Mismatch("a number") from None
    if not math.isfinite(number):
        raise _Mismatch("a finite number")
    return number


def _read_union(text: str, choices: Sequence[Any]) -> Any:
    wanted = []
    # None first, so that `none` is not taken for text.
    for choice in sorted(choices, key=lambda choice: choice is not type(None)):
        try:
            return _read(text, choice)
        except _Mismatch as mismatch:
            wanted.append(str(mismatch))
    raise _Mismatch(_or([*wanted[1:], wanted[0]] if wanted[0] == "none" else wanted))


def _read_tuple(text: str, elements: Sequence[Any]) -> tuple[Any, ...]:
    parts = _parts(text)
    if len(elements) == 2 and elements[1] is Ellipsis:
        elements, wanted = [elements[0]] * len(parts), "such as 64,64"
    else:
        wanted = f"of {len(elements)}"
    if len(parts) != len(elements):
        raise _Mismatch(f"a list {wanted}")
    try:
        return tuple(_read(part, element) for part, element in zip(parts, elements, strict=True))
    except _Mismatch as mismatch:
        raise _Mismatch(f"a list {wanted}, each {mismatch}") from None


def _parts(text: str) -> list[str]:
    if text[:1] + text[-1:] in ("()", "[]"):
        text = text[1:-1]
    return [part.strip() for part in text.split(",") if part.strip()]


def _found(text: str) -> str:
    if not text:
        return "nothing"
    try:
        float(text)
    except ValueError:
        return f"text '{text}'"
    return text


def _or(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def check(instance: Any) -> None:
    """Refuses a value that is not of its field's type, or not finite: for settings given in Python."""
    for field, wanted in zip(dataclasses.fields(instance), hints_of(type(instance)).values(), strict=True):
        value = getattr(instance, field.name)
        own = value == field.default and type(value) is type(field.default)
        if own and not (isinstance(value, str) and wanted in (int, float, bool)):
            continue  # an author's own default is right, unless it is text where a number is computed with
        words = _misfit(value, wanted)
        if words:
            found = f"text '{value}'" if isinstance(value, str) else repr(value)
            name = f"{type(instance).__name__}({field.name}={value!r})"
            raise UserError(f"{name}: found {found}, expected {words}")


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call from Python; one that is not of its parameter's type is refused.

    A whole float, such as 1e6, is taken for an int where one is expected, as on the command line.
    """
    arguments = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = _evaluated(parameter.annotation, function)
        arguments[name] = value = _as_whole(given[name], annotation)
        words = _misfit(value, annotation)
        if words and parameter.kind is not parameter.VAR_KEYWORD:
            raise UserError(f"{name}={value!r}: found {shown(value)}, expected {words}", page="command-line#settings")
    return arguments


def check_field(cls: type, name: str, value: Any) -> tuple[Any, str | None]:
    """A value as a field of a dataclass takes it, and what the field expects instead, in words; None where it fits."""
    return fitted(value, hints_of(cls)[name])


def fitted(value: Any, wanted: Any) -> tuple[Any, str | None]:
    """A value as a field of an annotation takes it, and what the field expects instead; None where it fits."""
    value = _as_whole(value, wanted)
    return value, _misfit(value, wanted)


def _as_whole(value: Any, wanted: Any) -> Any:
    choices = typing.get_args(wanted) or (wanted,)
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole and int in choices and float not in choices else value


def shown(value: Any) -> str:
    """Describes a value that was found, for an error."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"text '{value}'" if isinstance(value, str) else _short(repr(value))


def misfit(value: Any, annotation: Any, owner: Any) -> str | None:
    """The type that a plainly annotated parameter of a user's callable expects; None if `value` fits.

    Checks only int, float, bool, None and unions of these. Text passes, since it may look like a number on the command
    line, and 0 and 1 pass for False and True.
    """
    wanted = _evaluated(annotation, owner)
    union = typing.get_origin(wanted) in (typing.Union, types.UnionType)
    choices = typing.get_args(wanted) if union else [wanted]
    if any(choice not in (int, float, bool, None, type(None)) for choice in choices):
        return None
    if (float in choices and isinstance(value, float)) or (bool in choices and value in (0, 1)):
        return None
    return _misfit(value, wanted)


def _misfit(value: Any, wanted: Any) -> str | None:
    """Describes the expected type if `value` does not fit it; None if it fits."""
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if wanted is bool:
        return None if isinstance(value, bool) or type(value).__name__ == "bool" else "True or False"
    if wanted is int:
        return None if number and isinstance(value, numbers.Integral) else "a whole number"
    if wanted is float:
        if not number:
            return "a number"
        return None if math.isfinite(value) else "a finite number"
    if wanted is str:
        return None if isinstance(value, str) else "text"
    if wanted in (None, type(None)):
        return None if value is None else "None"
    if wanted is Path:
        return None if isinstance(value, os.PathLike) else "a path"
    if origin is dict:
        return None if isinstance(value, Mapping) else "a dict"
    if origin is Literal:
        return None if value in arguments else _or(repr(choice) for choice in arguments)
    if origin in (typing.Union, types.UnionType):
        misfits = [_misfit(value, choice) for choice in arguments]
        return None if None in misfits else _or(filter(None, misfits))
    if origin is tuple:
        if not isinstance(value, tuple):
            return "a tuple"
        elements = [arguments[0]] * len(value) if arguments[1:] == (Ellipsis,) else list(arguments)
        if len(elements) != len(value):
            return f"a tuple of {len(elements)}"
        misfit = next(filter(None, map(_misfit, value, elements)), None)
        return f"a tuple, each {misfit}" if misfit else None
    return None


# Types


def hints_of(cls: type) -> dict[str, Any]:
    """The type of each field of a dataclass; `Any` where its annotation cannot be evaluated at run time."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        name = getattr(cls, "__name__", cls)
        raise UserError(f"{name} is not a dataclass; decorate it with @dataclass(frozen=True)")
    check_declared(cls)
    hints = {}
    for field in dataclasses.fields(cls):
        owner = next(base for base in cls.__mro__ if field.name in inspect.get_annotations(base))
        hints[field.name] = _evaluated(field.type, owner)
    return hints


def check_declared(cls: type) -> None:
    """Refuses a subclass whose fields or defaults its dataclass would silently ignore."""
    for base in cls.__mro__:
        above: list[Any] = [each for each in base.__mro__[1:] if dataclasses.is_dataclass(each)]
        inherited = {field.name for each in above for field in dataclasses.fields(each)}
        if not above:
            continue
        annotated = {
            name: None
            for name, annotation in inspect.get_annotations(base).items()
            if not name.startswith("_") and "ClassVar" not in str(annotation)
        }
        if annotated and "__dataclass_fields__" not in vars(base):
            raise UserError(
                f"{base.__name__} has fields ({', '.join(annotated)}) that its base class does not know, and would be "
                f"dropped; write @dataclass(frozen=True) above class {base.__name__}"
            )
        for name in (inherited - annotated.keys()) & vars(base).keys():
            raise UserError(
                f"{base.__name__}.{name} = ... has no type, so that the default of its base class stays in force; "
                f"write {name}: TYPE = ..., with @dataclass(frozen=True) above class {base.__name__}"
            )


def _evaluated(annotation: Any, owner: Any) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        # As typing.get_type_hints, but one by one: a name that only type checkers import spoils one field.
        return eval(annotation, vars(sys.modules[owner.__module__]), dict(vars(owner)))
    except Exception:
        return Any


def default_text(value: Any) -> str:
    """A value in the form of the command line."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return ",".join(default_text(part) for part in value) or "()"
    return getattr(value, "__name__", None) or str(value)
