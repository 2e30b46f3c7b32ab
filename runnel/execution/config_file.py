"""Training from a file: the config.json of any run, or a file that a user wrote with some of its keys.

    runnel.train(**arguments("runs/mine"), run_dir="runs/again")

The file may be untrusted. Code that it names is imported only if `trust.admit` admits it, as in `resume`; and arguments
that belong to one process and its machine, such as `run_dir` and `launcher`, are never taken from it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel import algorithms, deprecated, distributions
from runnel.algorithm import Algorithm
from runnel.config import policy_config, run_config, serialization
from runnel.config.run_config import STORED, RunConfig
from runnel.errors import UserError, a, nearest
from runnel.execution import trust as trusting
from runnel.execution.building import check_scripts, read_config
from runnel.execution.plan_settings import ASKED, asked_in, undecided
from runnel.planning.distribution import Distribution
from runnel.recording.files import read_json
from runnel.user_code import named_modules

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "algorithm": ("class", "settings", ASKED, "unavailable", "session"),
    "environment": ("name", "settings", "unavailable", "session"),
    "distribution": ("class", "settings", "unavailable", "session"),
}
"""The parts of a run, and the keys of each; the first key names it."""

INSIDE: Final = {"settings": "algorithm", "env_settings": "environment"}
"""Arguments of `train` that a file has inside one of its parts."""


class ConfigFile(NamedTuple):
    """A configuration, as it was read."""

    path: Path
    config: dict[str, Any]
    run_dir: Path | None  # that it lies in: nothing in there is imported


def arguments(
    path: str | Path,
    *,
    algorithm: str | None = None,
    environment: str | None = None,
    distribution: str | None = None,
    wandb: bool | None = None,
    trust: Collection[str] = (),
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The arguments of `train` that a configuration asks for; `path` is a file, or a run directory.

    An `algorithm`, `environment` or `distribution` that is given takes the place of the file's. The file's settings are
    kept if it is the same one, and otherwise dropped, with a `note`. `trust`: names of code in the file that may
    be imported although no run of this user's has signed them.
    """
    file = read(path)
    config = file.config
    given = {"algorithm": algorithm, "environment": environment, "distribution": distribution}
    named = {"algorithm": _class_path(algorithm, algorithms.load), "environment": environment,
             "distribution": _class_path(distribution, distributions.load)}  # fmt: skip
    taken = [part for part in PARTS if _is_taken(config.get(part), part, named[part])]
    # What the user has named is the user's own choice, as without a file; not so the settings beside it.
    chosen = [name for part in taken if given[part] is not None and (name := _name_of(config[part], part))]
    parts = [*taken, *([trusting.WANDB] if wandb is None else [])]
    trusting.admit(file.run_dir, config, [*trust, *chosen], parts, None if _is_runs(file) else file.path)
    found: dict[str, Any] = {name: config[name] for name in STORED if name in config}
    for part, name in given.items():
        if part not in taken and name is not None:
            found[part] = name
            _note_dropped(file, part, name, note)
        elif part not in taken and part != "distribution":
            raise UserError(
                f"{file.path} names no {part}; name one: runnel train --config {file.path} ALGORITHM ENVIRONMENT"
            )
    for part, base in (("algorithm", Algorithm), ("distribution", Distribution)):
        if part in taken:
            found[part] = serialization.from_json({"settings": {}, **config[part]}, base)
    if "algorithm" in taken:  # a new run: its own plan decides what was left to the plan
        found["algorithm"] = undecided(found["algorithm"], asked_in(config["algorithm"]))
    if "environment" in taken:
        found["environment"] = _environment(file, config["environment"])
        found["env_settings"] = dict(config["environment"].get("settings", {}))
    return found


def read(path: str | Path) -> ConfigFile:
    """A configuration from a file or a run directory, checked; nothing that it names is imported."""
    path = Path(path)
    if path.is_dir():
        file = ConfigFile(path / "config.json", read_config(path), path)
    else:
        real = os.path.realpath(path)  # the user's own path may lead through links
        inside = named_modules.run_directory_of(real)
        file = ConfigFile(path, _read(path, Path(real)), None if inside is None else Path(inside))
    _check(file)
    return file


def _read(path: Path, real: Path) -> dict[str, Any]:
    try:
        config = read_json(real.parent, real.name)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"there is no file {path}; expected the config.json of a run, or a run directory",
            page="command-line#a-configuration-from-a-file",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        why = str(getattr(error, "strerror", None) or error).partition(";")[0]
        raise UserError(f"{path} cannot be read: {why}; expected JSON as in the config.json of a run") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: found {a(config)}, expected an object with keys of a run's config.json")
    if policy_config.is_policy(config):
        raise UserError(f"{path} describes a policy, expected the config.json of a run; `--init-from` takes policies")
    return config


def _check(file: ConfigFile) -> None:
    """Refuses invalid configurations: a newer format, unknown keys, values of another type."""
    run_config.check_format(file.path, file.config)
    for key, value in list(file.config.items()):
        if key not in run_config.KEYS:
            raise _unknown(file.path, key)
        if key in PARTS:
            _check_part(file.path, key, value)
        elif key in STORED:
            file.config[key], expected = run_config.read_field(key, value)
            if expected:
                raise UserError(f"{file.path}: '{key}' is {str(value)[:60]!r}, expected {expected}")
    check_scripts(file.path, file.config, file.run_dir)


def _unknown(path: Path, key: str) -> UserError:
    fields = [field.name for field in dataclasses.fields(RunConfig)]
    if key in INSIDE:
        return UserError(f"{path}: found '{key}'; expected 'settings' inside '{INSIDE[key]}'")
    if key in fields:
        text = (
            f"{path}: found '{key}', which belongs to one process and is not taken from a file; pass {key}= separately"
        )
        return UserError(text, keywords=(key,))
    return UserError(
        f"{path}: found '{key[:60]}', which no configuration has{nearest(key[:60], run_config.KEYS)}",
        page="command-line#a-configuration-from-a-file",
    )


def _check_part(path: Path, part: str, value: Any) -> None:
    known = PARTS[part]
    if not isinstance(value, dict):
        raise UserError(
            f'{path}: \'{part}\' is {str(value)[:60]!r}, expected {{"{known[0]}": ..., "settings": {{...}}}}'
        )
    for key, inner in value.items():
        if key not in known:
            raise UserError(f"{path}: found '{key[:60]}' in '{part}'{nearest(key[:60], known)}")
        table = key in ("settings", ASKED)
        if not isinstance(inner, dict if table else str | None):
            expected = "an object" if table else "text"
            raise UserError(f"{path}: '{key}' in '{part}' is {str(inner)[:60]!r}, expected {expected}")
    if not isinstance(value.get(known[0]), str) and "unavailable" not in value:
        raise UserError(f"{path}: '{part}' has no '{known[0]}', which says what it is")


def _is_taken(part: Any, what: str, named: str | None) -> bool:
    """Whether a part of the file is used: it exists, and no argument replaces it."""
    return part is not None and (named is None or deprecated.current_path(str(_name_of(part, what))) == named)


def _name_of(part: Mapping[str, Any], what: str) -> str | None:
    return part.get("name" if what == "environment" else "class")


def _class_path(name: str | None, load: Callable[[str], type]) -> str | None:
    """The import path of a class that the user names."""
    return None if name is None else serialization.path_of(load(name))


def _note_dropped(file: ConfigFile, part: str, name: str, note: Callable[[str], None]) -> None:
    before = file.config.get(part)
    if before is not None and before.get("settings"):
        old = str(_name_of(before, part) or before.get("unavailable")).rpartition(":")[2]
        note(f"the settings of {old} in {file.path} are not used: the {part} is {name}")


def _environment(file: ConfigFile, part: Mapping[str, Any]) -> Any:
    if "unavailable" not in part:
        return part["name"]
    held = serialization.held(part)
    if held is None:
        raise UserError(
            f"{file.path} names {part['unavailable']}, which no other process can import; name one: runnel train "
            f"--config {file.path} ALGORITHM ENVIRONMENT"
        )
    return held


def _is_runs(file: ConfigFile) -> bool:
    """Whether it is the config.json of its run directory."""
    return file.run_dir is not None and file.path == file.run_dir / "config.json"
