"""What adapters do and say when an environment of another library is made. No JAX is imported here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable

from runnel.errors import UserError


def draw_without_screen() -> None:
    """Where there is no screen, MuJoCo's and pygame's own choices fail or complain: tells them to do without."""
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # nobody listens to a picture
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def bad_setting(name: str, settings: Iterable[str], problem: TypeError) -> Exception:
    """Says which setting the environment does not take; any other TypeError is its own and passes."""
    unknown = [key for key in settings if f"unexpected keyword argument '{key}'" in str(problem)]
    if not unknown:
        return problem
    return UserError(f"{name} has no setting '{unknown[0]}'; leave it out")


def missing_dependency(name: str, problem: Exception) -> UserError:
    text = one_line(problem)
    if "mujoco" in text.lower() and importlib.util.find_spec("mujoco") is None:
        return UserError(f"{name} needs MuJoCo, which is not installed; run: pip install 'runnel[mujoco]'")
    if "pygame" in text.lower() and importlib.util.find_spec("pygame") is None:
        return UserError(f"{name} needs pygame, which is not installed; run: pip install 'runnel[classic]'")
    return UserError(f"{name} needs something that is not installed: {text}")


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())
