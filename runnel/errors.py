"""The exceptions of a run, and text that is safe to print.

`UserError` means that the user can fix the problem. Its text states what was found, what was expected and the fix, in
one or two lines; the command line prints it without a traceback and exits with status 2.
"""

import difflib
import unicodedata
from collections.abc import Collection, Iterable
from typing import Any, Final

UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of characters that control a terminal, reverse or hide text, or cannot be printed."""


def printable(text: str) -> str:
    r"""The text with every invisible character as an escape, such as `\x1b`; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in UNSEEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class _Shown(BaseException):
    """An error whose text may quote a file, a worker or an environment, and is printed."""

    page = ""
    """The documentation page with more about the error: `faults#when-an-environment-fails`, as `runnel help` takes it.
    """

    def __init__(self, text: str = "", *, page: str = ""):
        super().__init__(text)
        self.page = page or type(self).page

    def __str__(self) -> str:
        return printable(super().__str__())


class UserError(_Shown, Exception):
    """An error that the user can fix; its text states how.

    The text names arguments as Python does: `envs=10`, or `run_dir=` without a value. `keywords` are the arguments that
    it names in this way, for the command line to show them as flags: `--envs 10`, `--run-dir`. The text of an error
    with a `page` is one line, after which the command line names the page.
    """

    def __init__(self, text: str = "", *, keywords: Collection[str] = (), page: str = ""):
        super().__init__(text, page=page)
        self.keywords = tuple(keywords)


class NotInstalled(UserError):
    """A library that this run needs is missing. An extra of `package` installs it."""

    page = "dependencies#extras"

    def __init__(self, what: str, library: str, extra: str, *, keywords: Collection[str] = (), package: str = "runnel"):
        text = f"{what} needs {library}, which is not installed; run: pip install '{package}[{extra}]'"
        super().__init__(text, keywords=keywords)


class OutOfDescriptors(UserError):
    """A process has reached its limit of open files; it may have fewer in a moment."""


class WorkerFailed(_Shown, RuntimeError):
    """A worker ended unexpectedly; the text has its traceback or the end of its log."""

    page = "faults#how-a-worker-is-replaced"


class RunFailed(_Shown, RuntimeError):
    """A run or an evaluation failed for a reason outside its settings: a lost machine, or code that it called."""


class StateLost(RuntimeError):
    """A worker was lost with state that only a checkpoint has: the whole run must resume from the newest one."""


class HostLost(StateLost):
    """A machine was lost with all its workers: the run must resume from a checkpoint, without it."""

    def __init__(self, host: str, how: str):
        super().__init__(f"{host} {how}")
        self.host = host


class MalformedMessage(Exception):
    """Another process sent a message that is not part of the protocol. It is dropped; later ones can be received."""


class EnvironmentFailed(_Shown, RuntimeError):
    """An environment failed more often than a run tolerates; the text has the environment's own traceback."""

    page = "faults#when-an-environment-fails"


def a(thing: Any) -> str:
    """The kind of a value, with its article: `an int` for 3."""
    kind = type(thing).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names in `known` that are similar to `name`, or shorten to it: `learning_rate` is near `lr`."""
    by_lower = {k.lower(): k for k in sorted(known)}
    short = [k for k in by_lower if len(name) > 1 and "".join(word[:1] for word in k.split("_")) == name.lower()]
    alike = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return [by_lower[k] for k in dict.fromkeys([*short, *alike])][:3]


def did_you_mean(originals: Iterable[str]) -> str:
    return "; did you mean " + " or ".join(f"'{k}'" for k in originals) + "?"


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'ppo'?`, or the whole list where nothing is near."""
    known = sorted(known)
    originals = near(name, known)
    if originals:
        return did_you_mean(originals)
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; known: {shown}" if known else ""
