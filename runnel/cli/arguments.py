"""Reads a command line by the grammar, and says what may have been meant where it cannot be read."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence

from runnel.cli.catalog import FLAGS
from runnel.cli.grammar import grammar
from runnel.cli.shared_flags import NAMES
from runnel.errors import UserError, did_you_mean, near, nearest


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What a command line asks for; ends the process with status 2 and a line where it cannot be read."""
    parser = grammar()
    args, unknown = parser.parse_known_args(_one_setting_each(argv))
    if args.command in CONFIGURED:
        unknown = _take_names(args, unknown)
    if unknown:
        # argparse would say this in the name of `runnel`, without a suggestion.
        args.parser.error(f"found '{unknown[0]}', which it does not take{_meant(unknown[0], args, argv)}")
    if args.command in CONFIGURED and args.config is None:
        missing = [name.upper() for name in NAMES if getattr(args, name) is None]
        if missing:
            args.parser.error(f"the following arguments are required: {', '.join(missing)}")
        if args.trust:
            args.parser.error("found --trust, which is for code that a --config file names")
    return args


CONFIGURED = ("train", "sweep")
"""Commands that take `--config`."""


def _take_names(args: argparse.Namespace, unknown: list[str]) -> list[str]:
    """argparse refuses names that may be left out where a flag stands between them: `ppo --seed 1 CartPole-v1`.

    Takes the names from what it did not understand; the rest.
    """
    rest = []
    for word in unknown:
        free = [name for name in NAMES if getattr(args, name) is None]
        if free and not word.startswith("-"):
            setattr(args, free[0], word)
        else:
            rest.append(word)
    return rest


FLAG_OF = {
    "checkpoint_every_s": "--checkpoint-every",
    "hang_after_s": "--hang-after",
    "keep_every_s": "--keep-every-seconds",
    "eval_env_settings": "--set eval.env",
    "sinks": "--sink",
}
"""By keyword of `train`: flags that are called otherwise."""


def flag_of(keyword: str) -> str:
    return FLAG_OF.get(keyword, f"--{keyword.replace('_', '-')}")


def in_flags(error: UserError) -> str:
    """An error's text with the keywords that it names as flags: `--envs 10`, where Python says `envs=10`."""
    text = str(error)
    for keyword in error.keywords:
        flag = flag_of(keyword)
        text = re.sub(rf"\b{keyword}=([^\s,;:]*)", lambda found, flag=flag: f"{flag} {_bare(found[1])}".strip(), text)
    return text


def _bare(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') and value[:1] == value[-1:] else value


def _meant(word: str, args: argparse.Namespace, argv: Sequence[str]) -> str:
    """What may have been meant by a word that a command does not take: a flag of its own, or a setting."""
    if not word.startswith("-"):
        return ""
    flags = args.parser._option_string_actions
    name, _, value = word.partition("=")
    if not value and word in argv[:-1]:
        value = argv[argv.index(word) + 1]
    settings = _settings_of(args, argv)
    shown = {setting: f"--set {setting}={_typed(value, of)}" for setting, of in settings.items()}
    shown |= {flag.lstrip("-").replace("-", "_"): flag for flag in flags}
    key = name.lstrip("-").replace("-", "_")
    if key in shown:
        return did_you_mean([shown[key]])
    # `env_split` is found as `distribution.env_splits`.
    alike = near(key, [setting.removeprefix("distribution.") for setting in shown])
    found = [shown.get(each) or shown[f"distribution.{each}"] for each in alike]
    return did_you_mean(found) if found else nearest(name, flags)


def _settings_of(args: argparse.Namespace, argv: Sequence[str]) -> dict[str, str]:
    """The settings that `--set` takes of the algorithm and the distribution that were named, with their types."""
    from runnel import algorithms
    from runnel.cli import catalog

    if not hasattr(args, "set"):
        return {}
    # A flag that is not known leaves its value among the names: `--learning-rate 1e-3 ppo CartPole-v1`.
    algorithm = next((word for word in argv if algorithms.known_as(word) in algorithms.names()), None)
    algorithm = algorithm or getattr(args, "algorithm", None)
    found: dict[str, str] = {}
    for name, prefix in ((algorithm, ""), (getattr(args, "distribution", None), "distribution.")):
        with contextlib.suppress(UserError):
            entry = catalog.find(name) if name else None
            found |= {f"{prefix}{row.name}": row.type for row in (entry.settings if entry else ())}
    return {name: of for name, of in found.items() if name.removeprefix("distribution.") not in FLAGS}


def _typed(value: str, of: str) -> str:
    """The value that was given with a flag, as a setting of that type may have it."""
    if of == "bool":
        return value if value.lower() in ("true", "false") else "true"
    return "VALUE" if not value or re.match(r"-+[a-z]", value) else value


def _one_setting_each(argv: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set=a=1 --set=b=2`: argparse would take names that follow for settings."""
    words: list[str] = []
    flag = ""  # whose values these are
    for word in argv:
        flag = flag if "=" in word and not word.startswith("-") else ""
        if flag and words[-1] == flag:
            words[-1] = f"{flag}={word}"
        else:
            words.append(f"{flag}={word}" if flag else word)
        flag = word if word in ("--set", "--over") else flag
    return words
