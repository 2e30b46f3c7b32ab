"""Serialises objects as an import path and fields, from which another process or a later run can create them.

An import path is `package.module:name`, or `/path/to/file.py:name` for a script. Reading one executes nothing but the
import of the module it names; nothing is ever unpickled. `trust` decides beforehand which paths of a stored
configuration may be read.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from runnel import deprecated
from runnel.errors import UserError, nearest
from runnel.user_code import loading, source_scan

T = TypeVar("T")

STANDARD = sys.stdlib_module_names - {"__main__", "math"}
"""Modules that are not imported by name, except that functions of `math` may be settings."""

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_PATH = re.compile(rf"({_NAME}|.*\.py):({_NAME})")


def to_json(instance: Any) -> dict[str, Any]:
    """`{"class": "module:Name", "settings": {...}}` of an algorithm or a distribution.

    What has no import path (a class of a notebook, a lambda) is noted as such, and only `from_json` refuses
    it: what cannot be resumed from the command line can still be trained.
    """
    return _encode_fields(instance)


def from_json(data: Mapping[str, Any], base: type[T]) -> T:
    """The object that `to_json` described; it must be a `base`."""
    if not isinstance(data, Mapping) or not isinstance(data.get("settings"), Mapping):
        raise UserError(f"found {str(data)[:60]!r}, expected a {base.__name__}'s class and settings")
    cls = held(data)
    if "unavailable" in data and cls is None:
        raise UserError(_unavailable(data["unavailable"]))
    cls = import_object(data.get("class")) if cls is None else cls
    if not (isinstance(cls, type) and issubclass(cls, base) and dataclasses.is_dataclass(cls)):
        raise UserError(
            f"{data['class'] or data['unavailable']} is no {base.__name__}; was the file that names it edited?"
        )
    try:
        return _build(cls, data["settings"])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the settings of {data['class']} cannot be read ({type(error).__name__}: {error}); was the file that "
            "names it edited?"
        ) from error


def reason(data: Any) -> str | None:
    """Why `from_json` would refuse what `to_json` wrote, or None."""
    if isinstance(data, Mapping):
        if "unavailable" in data:
            return _unavailable(data["unavailable"])
        return next(filter(None, map(reason, data.values())), None)
    if isinstance(data, list):
        return next(filter(None, map(reason, data)), None)
    return None


def _names_code(data: Any) -> bool:
    """Whether a setting that `to_json` wrote can only be read by importing something."""
    if not isinstance(data, Mapping):
        return isinstance(data, list) and any(map(_names_code, data))
    if len(data) != 1 or not data.keys() <= {"float", "list", "dict"}:
        return True
    (inside,) = data.values()
    return any(map(_names_code, inside.values() if "dict" in data else [inside]))


def plain_value(data: Any) -> Any:
    """The value of a setting that names no code."""
    try:
        if not _names_code(data):
            return _decode(data)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"found {str(data)[:60]!r}, which cannot be read ({type(error).__name__})") from None
    raise UserError(f"found {str(data)[:60]!r}, expected a setting that names no code")


def split(path: Any) -> tuple[str, str] | None:
    """The module (or file) and the name of an import path; None if it is no import path."""
    match = _PATH.fullmatch(path) if isinstance(path, str) and path.isprintable() else None
    return (match[1], match[2]) if match else None


def import_object(path: Any) -> Any:
    """The object at `package.module:name` or `/path/to/file.py:name`. Imports its module, and calls nothing."""
    parts = split(path)
    if parts is None:
        raise UserError(f"found '{path}', expected package.module:name")
    current = deprecated.current_path(path)
    if current != path:
        deprecated.warn(path, current)
        return import_object(current)
    module_name, _ = parts
    if module_name.partition(".")[0] in STANDARD:
        # It has no algorithm or environment, but much that a file must not be able to call.
        raise UserError(
            f"found '{path}' of Python's standard library; expected a module of yours",
            page="command-line#algorithms-and-environments",
        )
    is_file = module_name.endswith(".py")
    module = loading.module_of_file(Path(module_name)) if is_file else loading.module_named(module_name)
    return _attribute(module, path)


def loaded(path: str) -> Any:
    """The object at an import path if its module is already loaded, otherwise None. Imports nothing."""
    module_name, _ = split(path) or ("", "")
    main = sys.modules["__main__"]
    if module_name.endswith(".py"):
        module = (
            main if loading.runs(main, Path(module_name)) else sys.modules.get(loading.name_of_file(Path(module_name)))
        )
    else:
        module = main if getattr(main.__spec__, "name", None) == module_name else sys.modules.get(module_name)
    try:
        return None if module is None else _attribute(module, path)
    except UserError:
        return None


def _attribute(module: types.ModuleType, path: str) -> Any:
    """The attribute of a module that a path names. Paths through another module that this one imported are refused."""
    module_name, name = split(path) or ("", "")
    value: Any = module
    for part in name.split("."):
        if value is not module and isinstance(value, types.ModuleType):
            raise UserError(f"found '{path}', which leads through the module {value.__name__}; name it by that module")
        if not hasattr(value, part):
            known = [n for n in vars(value) if not n.startswith("_")] if hasattr(value, "__dict__") else []
            raise UserError(
                f"'{module_name}' has no '{name}'{nearest(name, known)}",
                page="command-line#algorithms-and-environments",
            )
        value = getattr(value, part)
    if isinstance(value, _FUNCTIONS) and str(value.__module__).partition(".")[0] in STANDARD:
        raise UserError(f"found '{path}', which is of Python's standard library; expected one of yours")
    return value


_FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType)


def load_class(name: str, registry: Mapping[str, str], base: type[T], what: str, *, page: str) -> type[T]:
    """The class that a registry has under `name`, or the user's own at `package.module:Name`.

    `page`: of the documentation, that describes those there are.
    """
    if name not in registry and ":" not in name:
        bases = [base.__name__, *(path.rpartition(":")[2] for path in registry.values())]
        meant = source_scan.hint(name, source_scan.subclasses(name, bases)) or nearest(name, registry)
        raise UserError(f"there is no {what} '{name}'{meant}", page=page)
    cls = import_object(registry.get(name, name))
    if not (isinstance(cls, type) and issubclass(cls, base) and dataclasses.is_dataclass(cls)):
        raise UserError(
            f"{name} is no {what}; expected a frozen dataclass that extends runnel.{base.__name__}",
            page="command-line#algorithms-and-environments",
        )
    return cls


def path_of(value: Any, *modules: str) -> str | None:
    """`module:name` of an object that is an attribute of a module; None where it is not.

    Functions and classes know theirs; for others `modules` are searched first, then all that are loaded.
    """
    place = _place(value, *modules)
    return _path(*place) if place is not None else None


def _place(value: Any, *modules: str) -> tuple[str, str] | None:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(name, str):
        found = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        return (module, name) if found is value else None
    # Values of built-in types are shared by all their users: they have no import path of their own.
    if type(value).__module__ == "builtins":
        return None
    for module in dict.fromkeys([*modules, type(value).__module__, *sys.modules]):
        for name, attribute in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if attribute is value:
                return module, name
    return None


def unavailable(what: str, value: Any) -> dict[str, Any]:
    """The entry for an object without an import path; the interactive session that defined it can find it again."""
    place = _place(value, "__main__")
    in_session = place is not None and place[0] == "__main__"
    return {"unavailable": what, **({"session": place[1]} if in_session and place is not None else {})}


def held(data: Mapping[str, Any]) -> Any:
    """The object that `unavailable` noted, if this is an interactive session that has it; otherwise None."""
    main = sys.modules["__main__"]
    path = session_path(data)
    if path is None or not (getattr(main, "__file__", None) or "<stdin>").startswith("<"):
        return None  # not a session: what a program's main module has is not for a file to name
    value = loaded(path)
    imported = isinstance(value, _FUNCTIONS) and value.__module__ != "__main__"
    return None if imported else value


def session_path(data: Mapping[str, Any]) -> str | None:
    """The import path, good in one interactive session only, of what `unavailable` noted."""
    path = f"__main__:{data.get('session')}"
    return path if isinstance(data.get("session"), str) and split(path) else None


def _path(module: str, name: str) -> str | None:
    if module.startswith(loading.FROM_FILE):
        return f"{os.fsdecode(bytes.fromhex(module.removeprefix(loading.FROM_FILE)))}:{name}"
    if module != "__main__":
        return f"{module}:{name}"
    # A script's own classes are found again through its file: the next process has another __main__.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return f"{spec.name}:{name}"
    file = getattr(sys.modules["__main__"], "__file__", None)
    return f"{os.path.abspath(file)}:{name}" if file and file.endswith(".py") else None


def _fields(cls: type) -> list[str] | None:
    """The names that make an object of a dataclass or a NamedTuple; None of other classes."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    names = getattr(cls, "_fields", None)
    return list(names) if issubclass(cls, tuple) and names is not None else None


def _encode_fields(value: Any) -> dict[str, Any]:
    cls = type(value)
    settings = {name: _encode(getattr(value, name), cls.__module__) for name in _fields(cls) or ()}
    path = path_of(cls)
    noted = {} if path else unavailable(f"class {cls.__qualname__}", cls)
    return {"class": path, "settings": settings, **noted}


def _encode(value: Any, module: str) -> Any:
    """JSON that `_decode` reads: arrays are tuples; an object with one key names the kind of its value."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()  # a NumPy scalar
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if _fields(type(value)) is not None:
        by_value = _encode_fields(value)
    elif isinstance(value, tuple):
        return [_encode(part, module) for part in value]
    elif isinstance(value, list):
        return {"list": [_encode(part, module) for part in value]}
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(part, module) for key, part in value.items()}}
    else:
        what = str(getattr(value, "__qualname__", None) or f"a {type(value).__name__}")
        by_value = unavailable(what, value)
    if reason(by_value) is None:
        return by_value
    path = path_of(value, module, "__main__")
    return {"object": path} if path is not None else by_value


def _unavailable(what: str) -> str:
    return (
        f"this run uses {what}, which no other process can import, so it cannot be resumed or evaluated "
        "from the command line; put it into a module of its own and train with that"
    )


def _refuse(what: str) -> NoReturn:
    raise UserError(_unavailable(what))


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_decode(part) for part in data)
    if not isinstance(data, Mapping):
        return data
    cls = held(data)
    if "unavailable" in data and (cls is None or "settings" not in data):
        return cls if cls is not None else _refuse(data["unavailable"])
    if "object" in data:
        return import_object(data["object"])
    if "float" in data:
        return float(data["float"])
    if "list" in data:
        return [_decode(part) for part in data["list"]]
    if "dict" in data:
        return {key: _decode(part) for key, part in data["dict"].items()}
    cls = import_object(data.get("class")) if cls is None else cls
    if not isinstance(cls, type) or _fields(cls) is None:
        raise UserError(f"{data.get('class')} is no dataclass; was the file that names it edited?")
    return _build(cls, data["settings"])


def _build(cls: type, settings: Mapping[str, Any]) -> Any:
    known, settings = _fields(cls) or [], deprecated.current_fields(cls, settings)
    for name in settings:
        if name not in known:
            raise UserError(f"{cls.__name__} has no setting '{name}' (any more){nearest(name, known)}")
    decoded = {name: _decode(value) for name, value in settings.items()}
    try:
        return cls(**decoded)
    except (TypeError, ValueError) as error:
        raise UserError(f"{cls.__name__} cannot be made of these settings: {error}") from error
