"""argparse with errors of one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from runnel.errors import near, nearest, printable


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"there is no command '{value}'{nearest(value, action.choices)}")
        super()._check_value(action, value)

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        words = args[0] if args else kwargs.get("args")
        self._words = list(sys.argv[1:] if words is None else words)
        return super().parse_known_args(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            message = self._misspelt() or message
        self.exit(2, printable(f"{self.prog}: {message} (see `{self.prog} --help`)\n"))

    def _misspelt(self) -> str | None:
        """Of a required flag: what was given in its place, which argparse mentions only where nothing is missing."""
        for flag in (word.partition("=")[0] for word in self._words if word.startswith("--") and word != "--"):
            missing = [name for action in self._actions if action.required for name in action.option_strings]
            if flag not in self._option_string_actions and near(flag, missing):
                return f"found '{flag}', which it does not take{nearest(flag, missing)}"
        return None


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Examples as they are written; flags in a column of the same width in every command."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, max_help_position=28, **kwargs)


class HelpWithSettings(argparse.Action):
    """`runnel train ppo --help`: the flags, and the settings of the algorithm named before."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show this, and an algorithm's settings")

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        parser.print_help()
        name = getattr(namespace, "algorithm", None)
        if name is not None:
            from runnel.cli import catalog

            print(f"\n{catalog.described(catalog.find(name))}")
        parser.exit()
