"""Modules that a user names, imported from the working directory.

The working directory is never on the Python path: otherwise a file there with the name of an optional package would be
imported instead of it. One finder, the last that Python asks, serves two kinds of module from a directory: modules that
the user named, and modules that these import themselves. A file in a run directory is never served.

The process that the user started decides; its workers receive `state()` and apply it with `restore`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

from runnel.errors import UserError

BESIDES: Final = ("metrics.jsonl", "checkpoints", "result.json")
"""The files beside config.json that mark a run directory. A directory of several has a members.json."""

HEAD_BYTES: Final = 1 << 20


class NamedModules(MetaPathFinder):
    """Serves top-level modules; those within a package are found through the package."""

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}  # by the name of a top-level module: the directory it is served from
        self.never: set[str] = set()  # directories, resolved, of which no file is served
        self.sealed = False  # another process has decided
        self.served: dict[str, str] = {}  # by the name of a module: the directory beside it that it may import from

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None:
            return None
        root = self.roots.get(fullname) or self._beside(sys._getframe(1))
        spec = None if root is None else PathFinder.find_spec(fullname, [root])
        if root is None or spec is None or any(self.forbids(place) for place in _places(spec)):
            return None
        self.served[fullname] = root
        return spec

    def _beside(self, frame: FrameType | None) -> str | None:
        """The directory that the importing module was served from; None of any other importer."""
        while frame is not None and _is_importlib(frame):
            frame = frame.f_back
        importer = {} if frame is None else frame.f_globals
        root = self.served.get(str(importer.get("__name__")).partition(".")[0])
        return root if root is not None and is_inside(str(importer.get("__file__")), root) else None

    def forbids(self, place: str) -> bool:
        """Whether a file or directory is in a directory from which nothing is served."""
        return any(is_inside(place, directory) for directory in self.never)


def name(module: str, root: str | None = None) -> None:
    """Allows a module that the user named to be imported from `root`, or from the working directory.

    Only if Python does not find it otherwise.
    """
    finder, top = _finder(), module.partition(".")[0]
    if finder.sealed or _found(top) is not None:
        return
    root = root or _here()
    spec = None if root is None else PathFinder.find_spec(top, [root])
    if root is None or spec is None:
        return
    for place in _places(spec):
        if finder.forbids(place) or run_directory_of(place) is not None:
            raise UserError(
                f"'{module}' lies in {run_directory_of(place) or place}, the directory of a run, and nothing in one is "
                "imported; move it elsewhere"
            )
    finder.roots[top] = root


def adopt(module: str, directory: str) -> None:
    """Allows a module that was loaded from a file to import modules beside it."""
    _finder().served[module] = directory


def exclude(run_dir: str | os.PathLike[str]) -> None:
    """Serves nothing from this directory from now on."""
    _finder().never.add(os.path.realpath(run_dir))


def is_served(module: str) -> bool:
    """Whether a loaded module was found by the finder, and not by the user's own program."""
    return module.partition(".")[0] in _finder().served


def file_of(module: str) -> str | None:
    """The file that a module was, or would be, imported from; None if there is none. Imports nothing.

    A module that is not named yet is looked for in the working directory last, as in `name`.
    """
    top, _, rest = module.partition(".")
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return os.path.abspath(loaded)
    here = _here()
    spec = _found(top) or (PathFinder.find_spec(top, [here]) if here else None)
    for place in () if spec is None else _places(spec):
        if not rest:
            return place if os.path.isfile(place) else None
        within = os.path.join(place if os.path.isdir(place) else os.path.dirname(place), *rest.split("."))
        for file in (f"{within}.py", os.path.join(within, "__init__.py")):
            if os.path.isfile(file):
                return os.path.abspath(file)
    return None


def root_of(module: str, file: str) -> str:
    """The directory under which a file has this name as a module."""
    levels = module.count(".") + (os.path.basename(file) == "__init__.py")
    root = os.path.dirname(os.path.abspath(file))
    for _ in range(levels):
        root = os.path.dirname(root)
    return root


def run_directory_of(place: str) -> str | None:
    """The run directory that a file or directory is, or is in, links followed; None if there is none."""
    place = os.path.realpath(place)
    while not _is_run_directory(place):
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above
    return place


def is_inside(place: str, directory: str) -> bool:
    """Whether a path, links followed, is a directory or inside of it."""
    place, directory = os.path.realpath(place), os.path.realpath(directory)
    return place == directory or place.startswith(os.path.join(directory, ""))


def keep_settings_out() -> None:
    """Loads Matplotlib, which many environments import, without the `matplotlibrc` of the working directory.

    Matplotlib reads that file before any other. In an untrusted directory it may be a named pipe.
    """
    if "matplotlib" in sys.modules or not os.path.lexists("matplotlibrc"):
        return
    # With O_PATH, which Linux alone has, one that this user may enter and not read will do.
    here = os.open(".", getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        with contextlib.suppress(Exception):  # not installed, or broken: the code that needs it raises the error
            importlib.import_module("matplotlib")
    finally:
        os.fchdir(here)
        os.close(here)


def state() -> dict[str, Any]:
    """The state with which another process can import the same modules."""
    finder = _finder()
    return {"roots": dict(finder.roots), "never": sorted(finder.never)}


def restore(state: Mapping[str, Any]) -> None:
    """Adopts the `state` of another process; nothing can be added to it afterwards."""
    finder = _finder()
    finder.roots, finder.never, finder.sealed = dict(state.get("roots", {})), set(state.get("never", ())), True


def _finder() -> NamedModules:
    found = next((each for each in sys.meta_path if isinstance(each, NamedModules)), None)
    if found is None:
        found = NamedModules()
        sys.meta_path.append(found)
    return found


def _found(top: str) -> ModuleSpec | None:
    """The spec of a top-level module, found by Python's finders including this one."""
    try:
        return find_spec(top)
    except (ImportError, ValueError):  # loaded by other means, without a spec
        return None


def _places(spec: ModuleSpec) -> Iterator[str]:
    if spec.origin is not None and spec.has_location:
        yield spec.origin
    yield from spec.submodule_search_locations or ()


def _is_importlib(frame: FrameType) -> bool:
    return (
        frame.f_code.co_filename.startswith("<frozen importlib")
        or str(frame.f_globals.get("__name__")).partition(".")[0] == "importlib"
    )


def _is_run_directory(place: str) -> bool:
    """Whether a directory is that of a run, or of several."""
    begun = any(os.path.lexists(os.path.join(place, name)) for name in BESIDES)
    return (
        (begun and _has(place, "config.json", "algorithm", "distribution"))
        or _has(place, "members.json", "runnel_version", "members")
        or _has(place, "sweep.json", "runnel_version", "space")
    )


def _has(place: str, file: str, *keys: str) -> bool:
    """Whether a directory has a file with such keys, or one of that name that cannot be read."""
    try:
        fd = os.open(os.path.join(place, file), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    try:
        head = os.read(fd, HEAD_BYTES)
    except OSError:  # nothing that other programs keep under this name
        return True
    finally:
        os.close(fd)
    try:
        found = json.loads(head)
    except (ValueError, RecursionError):  # cut short, or not a configuration that anybody reads
        return True
    return isinstance(found, dict) and all(key in found for key in keys)


def _here() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return None
