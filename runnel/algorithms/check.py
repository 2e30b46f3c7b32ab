"""Checks of algorithms' settings; each raises UserError with the setting, its value and the values allowed."""

from __future__ import annotations

from typing import Any

from runnel.errors import UserError


def one_of(settings: Any, name: str, *wanted: str) -> None:
    _refuse_unless(settings, name, getattr(settings, name) in wanted, " or ".join(wanted))


def at_least_one(settings: Any, *names: str) -> None:
    for name in names:
        _refuse_unless(settings, name, getattr(settings, name) >= 1, "1 or more")


def positive(settings: Any, *names: str) -> None:
    """Above 0; None is allowed for settings that can be off."""
    for name in names:
        value = getattr(settings, name)
        _refuse_unless(settings, name, value is None or value > 0, "a number above 0")


def at_least_zero(settings: Any, *names: str) -> None:
    for name in names:
        _refuse_unless(settings, name, getattr(settings, name) >= 0, "0 or more")


def above(settings: Any, name: str, least: float | str) -> None:
    """Above a number, or another setting."""
    bound = getattr(settings, least) if isinstance(least, str) else least
    wanted = f"above {least}, which is {bound}" if isinstance(least, str) else f"above {least}"
    _refuse_unless(settings, name, getattr(settings, name) > bound, wanted)


def steps_ahead(settings: Any) -> None:
    """An n-step target needs its `n_step` steps within one unroll."""
    fits = settings.n_step <= settings.unroll
    _refuse_unless(settings, "n_step", fits, f"no more than unroll, which is {settings.unroll}: set that, too")


def fraction(settings: Any, *names: str) -> None:
    """From 0 to 1; None is allowed for settings that have a computed default."""
    for name in names:
        value = getattr(settings, name)
        _refuse_unless(settings, name, value is None or 0 <= value <= 1, "a number from 0 to 1")


def _refuse_unless(settings: Any, name: str, right: bool, wanted: str) -> None:
    if not right:
        text = f"{type(settings).__name__}: {name}={getattr(settings, name)!r}; it must be {wanted}"
        raise UserError(text, page=_page(type(settings)))


def _page(cls: type) -> str:
    """The documentation page with an algorithm's settings; a user's own algorithm has them in its source."""
    module, _, name = cls.__module__.rpartition(".")
    return f"reference-algorithms#{name}" if module == __package__ else "command-line#settings"
