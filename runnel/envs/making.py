"""Helpers for adapters that create another library's environment, and their errors. No JAX is imported here."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from runnel.config.settings import misfit, shown
from runnel.errors import EnvironmentFailed, NotInstalled, UserError, nearest


def draw_without_screen() -> None:
    """Configures MuJoCo and pygame to render without a screen if there is none: their defaults fail or warn."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # a picture has no sound
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def warn_once() -> None:
    """Makes MuJoCo print each of its warnings once; otherwise every environment prints the same ones."""
    mujoco: Any = importlib.import_module("mujoco")
    said: set[str] = set()

    def warn(text: str) -> None:
        if text not in said:
            said.add(text)
            print(f"MuJoCo: {text}", file=sys.stderr)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(warn)


def bad_setting(
    name: str, settings: Iterable[str], problem: TypeError, makes: Any = None, also: Sequence[str] = ()
) -> Exception:
    """Converts a TypeError about a setting that `makes` does not take into a UserError; other TypeErrors pass.

    `also`: settings that are taken before `makes` is called.
    """
    # What it is called with twice (`id`, of `gymnasium.make`) is ours to give.
    said = ("unexpected keyword argument", "multiple values for argument", "multiple values for keyword argument")
    unknown = [key for key in settings if any(f"{words} '{key}'" in str(problem) for words in said)]
    if not unknown:
        return problem
    known = [*(_settings_of(makes) if makes else []), *also]
    return UserError(
        f"{name} has no setting '{unknown[0]}'{nearest(unknown[0], known) or '; leave it out'}",
        page="command-line#settings",
    )


def _settings_of(makes: Any) -> list[str]:
    """The parameters of a callable, except for those that select rendering."""
    try:
        parameters = inspect.signature(makes).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "render_mode"
    ]


COUNT: Final = "num_envs"
"""The parameter of a callable that makes a `gymnasium.vector.VectorEnv`: the number of its environments."""


def names_parameter(makes: Any, name: str) -> bool:
    """Whether a callable has a parameter of that name; one that takes any keyword has not."""
    return _parameter(makes, name) is not None


def requires_parameter(makes: Any, name: str) -> bool:
    """Whether a callable cannot be called without a parameter of that name."""
    found = _parameter(makes, name)
    return found is not None and found.default is found.empty


def takes_keyword(makes: Any, name: str) -> bool:
    """Whether a callable accepts a keyword argument of that name, including by `**kwargs`."""
    try:
        parameters = inspect.signature(makes).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _parameter(makes: Any, name: str) -> inspect.Parameter | None:
    try:
        found = inspect.signature(makes).parameters.get(name) if callable(makes) else None
    except (TypeError, ValueError):
        return None
    return found if found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY) else None


def check_settings(name: str, makes: Any, settings: Mapping[str, Any]) -> None:
    """Refuses settings that a user's callable does not take, or that do not fit its plain annotation."""
    try:
        signature = inspect.signature(makes)
    except (TypeError, ValueError):
        return  # a callable without a signature: calling it will raise
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = _settings_of(makes)
    for key, value in settings.items():
        if key not in signature.parameters and not takes_any:
            raise UserError(
                f"{name} has no setting '{key}'{nearest(key, known) or '; it takes none'}", page="command-line#settings"
            )
        parameter = signature.parameters.get(key)
        words = misfit(value, parameter.annotation, makes) if parameter and value is not parameter.default else None
        if words:
            raise UserError(f"env.{key}={value}: found {shown(value)}, expected {words}", page="command-line#settings")
    try:
        signature.bind(**settings)
    except TypeError as problem:
        given = ", ".join(settings) or "no settings"
        raise UserError(f"'{name}' cannot be called with {given}: {problem}") from problem


@contextlib.contextmanager
def as_user_errors(name: str, makes: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Surrounds the first creation of an environment: converts its exceptions into a `UserError`."""
    try:
        yield
    except (UserError, EnvironmentFailed):
        raise
    except Exception as problem:
        text = "".join(traceback.format_exception_only(problem))
        given = ", ".join(f"{key}={value}"[:60] for key, value in settings.items())
        making = f"{name} with {given}" if given else name
        raise UserError(
            f"making {making} raised {' '.join(text.split())}{_place(problem, makes)}",
            page="add-an-environment#your-own-from-gymnasium",
        ) from problem


def _place(problem: Exception, makes: Any) -> str:
    """` (mine.py, line 72)`: where it was raised, of the file that defines what was called if that took part."""
    frames = traceback.extract_tb(problem.__traceback__)[1:]  # the first is that of `as_user_errors`
    code = getattr(getattr(makes, "__init__", None) if isinstance(makes, type) else makes, "__code__", None)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    frame = next(reversed(own or frames), None)
    return "" if frame is None else f" ({os.path.basename(frame.filename)}, line {frame.lineno})"


def missing_dependency(name: str, problem: Exception) -> UserError:
    text = joined_lines(problem)
    if "mujoco" in text.lower() and importlib.util.find_spec("mujoco") is None:
        return NotInstalled(name, "MuJoCo", "mujoco")
    if "pygame" in text.lower() and importlib.util.find_spec("pygame") is None:
        return NotInstalled(name, "pygame", "classic")
    return UserError(f"{name} needs something that is not installed: {text}", page=NotInstalled.page)


def joined_lines(problem: Exception) -> str:
    """The message of an exception, in one line."""
    return " ".join(str(problem).split())
