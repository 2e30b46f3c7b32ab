"""One policy on disk: `config.json` (its description) and `model.safetensors` (its parameters).

The policies of several groups are one directory each, below one. All files may come from a stranger: they are opened
without following links, and nothing in them is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

import numpy as np

from runnel.config import policy_config
from runnel.config.policy_config import PolicyConfig
from runnel.errors import UserError
from runnel.recording import parameters, run_directory
from runnel.recording.files import as_user_error, clean, one_line, read_json, read_wanted
from runnel.system.platform import memory_bytes

CONFIG: Final = "config.json"
MODEL: Final = "model.safetensors"
MOST_BYTES: Final = 1 << 40
MOST_HEADER_BYTES: Final = 100_000_000
"""The largest header that safetensors itself allows."""


def write(root: Path, name: str, config: PolicyConfig, arrays: Mapping[str, np.ndarray]) -> PolicyConfig:
    """Writes both files into the directory `name` below `root`, which must exist; returns the written configuration."""
    content = parameters.pack(arrays)
    config = replace(config, digest=_digest(content))
    run_directory.replace(root, _below(name, MODEL), content)
    write_config(root, name, config)
    return config


def write_config(root: Path, name: str, config: PolicyConfig) -> None:
    text = json.dumps(clean(config.to_json()), indent=2, allow_nan=False) + "\n"
    run_directory.replace(root, _below(name, CONFIG), text.encode())


def group_directory(group: str) -> str:
    """A name that every file system accepts, and that cannot lead to another directory."""
    return "group-" + quote(group, safe="", errors="replace").replace(".", "%2E")


SavedPolicy = tuple[PolicyConfig, Mapping[str, np.ndarray]]


def write_new(directory: Path, policies: Sequence[SavedPolicy]) -> Path:
    """Writes one policy, or those of several groups, into a directory of their own, which must be new or empty."""
    with as_user_error(directory):
        if directory.exists() and (not directory.is_dir() or os.listdir(directory)):
            raise UserError(
                f"{directory} is there already and not empty; nothing was written: choose another directory"
            )
        directory.mkdir(parents=True, exist_ok=True)
        for config, arrays in policies:
            name = group_directory(config.group) if len(policies) > 1 else ""
            (directory / name).mkdir(exist_ok=True)
            write(directory, name, config, arrays)
    return directory


def read_config(root: Path, name: str = "") -> PolicyConfig:
    path = root / name / CONFIG
    missing = f"{path.parent} holds no policy: there is no {CONFIG} in it"
    return policy_config.from_json(read_wanted(root, _below(name, CONFIG), missing), path)


def names_in(directory: Path) -> list[str]:
    """The subdirectories of the policies that were saved in a directory, `""` for a single one; none for that of a
    run."""
    if _is_policy(directory, ""):
        return [""]
    try:
        names = sorted(run_directory.names(directory, ""))
    except OSError:
        return []
    return [name for name in names if name.startswith("group-") and _is_policy(directory, name)]


def _is_policy(root: Path, name: str) -> bool:
    try:
        return policy_config.is_policy(read_json(root, _below(name, CONFIG)))
    except (OSError, ValueError, RecursionError):
        return False


def read_arrays(root: Path, name: str, config: PolicyConfig) -> dict[str, np.ndarray]:
    """The parameters; refuses a file that differs from the one that was written."""
    path = root / name / MODEL
    try:
        content = _read_model(root, _below(name, MODEL))
    except (OSError, MemoryError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error)}") from None
    if config.digest != _digest(content):
        raise UserError(f"{path} is damaged: it is not the file that {CONFIG} describes; use another snapshot")
    try:
        return parameters.unpack(content)
    except parameters.DamagedParameters as error:
        raise UserError(f"{path} is no file of parameters that Runnel writes: {error}") from None


def _read_model(root: Path, name: str) -> bytes:
    """The whole file; refuses a file that is obviously not of parameters, such as a huge one of zeros, without reading
    it to its end."""
    with run_directory.open_to_read(root, name, int(min(MOST_BYTES, memory_bytes()))) as file:
        size = os.fstat(file.fileno()).st_size
        if not 2 <= int.from_bytes(file.read(8), "little") <= min(size, MOST_HEADER_BYTES):
            return b""
        file.seek(0)
        return file.read(size)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _below(name: str, file: str) -> str:
    return f"{name}/{file}" if name else file
