"""The `config.json` of a stored policy: its algorithm and settings, its spaces, and its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from runnel import __version__
from runnel.config import spec_json
from runnel.config.run_config import Precision
from runnel.errors import UserError
from runnel.types import AgentSpec

FORMAT: Final = 1
WHAT: Final = "policy"
"""The entry that distinguishes it from the config.json of a run."""


@dataclass(frozen=True)
class PolicyConfig:
    """One group's policy at one version."""

    algorithm: Mapping[str, Any]  # as in a run's config.json
    group: str
    spec: AgentSpec
    acting: tuple[str, ...] = ()  # the parameters that actions depend on; the others are for learning
    version: int = 0  # updates of the learner that made it
    env_steps: int = 0  # environment steps of the run by then
    time: float = 0.0  # seconds since 1970
    trained_on: str = ""  # the environment's name
    digest: str = ""  # of model.safetensors
    metadata: Mapping[str, Any] = field(default_factory=dict)
    precision: Precision = "float32"  # that its networks were trained to act with
    code: Mapping[str, Any] | None = None  # the signature of an algorithm of the user's own

    def to_json(self) -> dict[str, Any]:
        code = {} if self.code is None else {"code": dict(self.code)}
        return {
            "runnel_version": __version__,
            "format": FORMAT,
            "what": WHAT,
            "algorithm": dict(self.algorithm),
            "group": self.group,
            "spec": spec_json.to_json(self.spec),
            "acting": list(self.acting),
            "version": self.version,
            "env_steps": self.env_steps,
            "time": self.time,
            "trained_on": self.trained_on,
            "digest": self.digest,
            "metadata": dict(self.metadata),
            "precision": self.precision,
            **code,
        }


_FITS: Final = {
    "algorithm": lambda x: isinstance(x, dict),
    "group": lambda x: isinstance(x, str),
    "acting": lambda x: isinstance(x, list) and all(isinstance(name, str) for name in x),
    "version": lambda x: type(x) is int and 0 <= x < 1 << 62,
    "env_steps": lambda x: type(x) is int and 0 <= x < 1 << 62,
    "time": lambda x: type(x) in (int, float) and 0 <= x < 1 << 40,
    "trained_on": lambda x: isinstance(x, str),
    "digest": lambda x: isinstance(x, str),
    "metadata": lambda x: isinstance(x, dict),
}


def is_policy(config: Any) -> bool:
    """Whether the content of a config.json is that of a policy, not of a run."""
    return isinstance(config, Mapping) and config.get("what") == WHAT


def from_json(config: Any, path: Path | str) -> PolicyConfig:
    """Reads a policy's config.json; refuses a file that no run has written."""
    if not is_policy(config):
        raise UserError(f"{path} is not a policy's configuration")
    found = config.get("format")
    if type(found) is not int or found < 1:
        raise UserError(f"{path}: 'format' is {str(found)[:60]!r}, which no policy has; was the file edited?")
    if found > FORMAT:
        raise UserError(
            f"{path}: found format {found}, expected {FORMAT}, which Runnel {__version__} reads; use a newer Runnel"
        )
    for name, fits in _FITS.items():
        if name not in config or not fits(config[name]):
            raise UserError(
                f"{path}: '{name}' is {str(config.get(name))[:60]!r}, which no policy has; was the file edited?"
            )
    precision = config.get("precision", "float32")  # which an older version did not write
    if precision not in get_args(Precision):
        raise UserError(f"{path}: 'precision' is {str(precision)[:60]!r}, expected {' or '.join(get_args(Precision))}")
    code = config.get("code")
    return PolicyConfig(
        **{name: config[name] for name in _FITS if name != "acting"},
        acting=tuple(config["acting"]),
        spec=spec_json.from_json(config.get("spec"), str(path)),
        precision=precision,
        code=code if isinstance(code, dict) else None,
    )
