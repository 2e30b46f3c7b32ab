"""Loads a user's modules for their definitions: by name, or from a file, which may be the script that runs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
import types
from pathlib import Path

from runnel.errors import UserError, nearest
from runnel.user_code import named_modules

FROM_FILE = "runnel_file_"
"""The prefix of the names of modules that were loaded from a file; the file's path follows."""

NAMES = "command-line#algorithms-and-environments"
"""The documentation page about names of modules."""

_LOADING: list[Path] = []
"""Scripts that are being loaded for their definitions."""


class Enough(BaseException):
    """Stops loading a script, for its definitions only, at the call that would train."""


def defined_enough() -> None:
    """Called where training begins: ends the loading of a script that another process needs a class of.

    So a script needs no `if __name__ == "__main__"` around its training.
    """
    if _LOADING:
        raise Enough


def module_named(name: str) -> types.ModuleType:
    """The module of that name. A script that would train when it is imported is loaded up to that call."""
    main = sys.modules["__main__"]
    if getattr(main.__spec__, "name", None) == name:
        return main  # run by `python -m`
    if name in sys.modules:
        return sys.modules[name]
    named_modules.name(name)
    try:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        file = Path(origin) if origin is not None and origin.endswith(".py") else None
        if file is not None and runs(main, file):
            return main  # under the name that it has as a module
        _LOADING.append(file or Path(name))
        try:
            return importlib.import_module(name)
        except Enough:
            assert file is not None
            return module_of_file(file)  # up to where it trains
        finally:
            _LOADING.pop()
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise UserError(
                f"there is no module '{name}' on the Python path or in the current directory", page=NAMES
            ) from None
        needed = f"it needs '{error.name}', which is not installed{_line_of(error)}"
        raise UserError(f"'{name}' cannot be imported: {needed}", page=NAMES) from error
    except Exception as error:
        raise UserError(f"'{name}' cannot be imported: {_reason(error)}", page=NAMES) from error


def _reason(error: Exception) -> str:
    """The exception that a user's module raised, with its line."""
    text = error.msg if isinstance(error, SyntaxError) else error
    return f"{type(error).__name__}: {text}{_line_of(error)}"


def _line_of(error: Exception) -> str:
    """` (file.py, line 3)`: the innermost line of the user's own that an error passed through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(("<", os.path.join(ours, ""), os.path.dirname(os.__file__)))
        and "site-packages" not in frame.filename
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def runs(main: types.ModuleType, file: Path) -> bool:
    """Whether `file` is the script that runs."""
    return os.path.abspath(getattr(main, "__file__", None) or "") == os.path.abspath(file)


def module_of_file(file: Path) -> types.ModuleType:
    """A file as a module; each file is loaded once."""
    main = sys.modules["__main__"]
    if runs(main, file):
        return main
    name = name_of_file(file)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        beside = [str(path) for path in file.parent.glob("*.py")]
        raise UserError(f"there is no file '{file}' (was it moved since the run began?){nearest(str(file), beside)}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    named_modules.adopt(name, os.path.dirname(os.path.abspath(file)))
    _LOADING.append(file)
    try:
        spec.loader.exec_module(module)
    except Enough:
        pass
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"'{file}' cannot be imported: {_reason(error)}") from error
    finally:
        _LOADING.pop()
    return module


def name_of_file(file: Path) -> str:
    """The module name of a file that is loaded."""
    return f"{FROM_FILE}{os.fsencode(os.path.abspath(file)).hex()}"
