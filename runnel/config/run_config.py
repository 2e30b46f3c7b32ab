"""What a run is asked for besides its algorithm, environment and distribution.

`RunConfig` is the one list of it: `runnel.train` has a keyword for each field, `runnel train` a flag, and `to_json` and
`from_json` write and read those that config.json keeps. Beside each field stands whether that is so, and its range.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from runnel import __version__
from runnel.config import settings
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.execution.callbacks import Callback
    from runnel.execution.policies.stored_policies import Source
    from runnel.launch.host_launcher import HostLauncher
    from runnel.matchmaking import Matchmaker
    from runnel.recording.sinks import Sink
    from runnel.transport.interface import Transport

OnNan = Literal["stop", "skip", "rollback"]
"""What to do when an update is refused because something is not finite."""

Precision = Literal["float32", "bf16"]
"""What networks compute in. `float32` is JAX's default: float64 under `jax_enable_x64`."""

MOST_ENVS: Final = 2**24
MOST_STEPS: Final = 2**62
MOST_SEED: Final = 2**32 - 1
MOST_EPISODES: Final = 1_000_000
MOST_MEMBERS: Final = 4096

FORMAT: Final = 1
"""Of config.json. Directories without a format were written before there was one, and are read as format 1."""

# What is said of a field of `RunConfig`, beside its type and its default


class Range(NamedTuple):
    """The numbers that a field may be."""

    fits: Callable[[Any], bool]
    expected: str


STEPS: Final = Range(lambda x: 1 <= x <= MOST_STEPS, "a whole number from 1 to 2**62")
SEED: Final = Range(lambda x: 0 <= x <= MOST_SEED, "a whole number from 0 to 2**32 - 1")
SECONDS: Final = Range(lambda x: x > 0, "more than 0 seconds")


def _whole(least: int, most: int) -> Range:
    return Range(lambda x: least <= x <= most, f"a whole number from {least} to {most}")


def _ranged(numbers: Range) -> dict[str, Any]:
    """A field of one process and its machine."""
    return {"range": numbers}


def _stored(numbers: Range | None = None, as_json: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """A field that config.json keeps. `as_json`: whether a value may stand there, if its type does not say that."""
    return {"stored": True, "range": numbers, "as_json": as_json}


def _names_policies(x: Any) -> bool:
    return x is None or (isinstance(x, dict) and all(isinstance(v, str) for v in x.values()))


@dataclass(frozen=True)
class RunConfig:
    """The arguments of a run. A test compares them with the keywords of `train` and the flags of `runnel train`."""

    envs: int | None = field(default=None, metadata=_stored(_whole(1, MOST_ENVS), as_json=lambda x: type(x) is int))
    """The total number of environments. None: the tuned number, else 8 host environments or 64 JAX environments."""
    steps: int = field(default=500_000, metadata=_stored(STEPS))
    """Environment steps to train for: one action each, summed over environments."""
    seed: int = field(default=0, metadata=_stored(SEED))
    """Seed of all random numbers."""
    precision: Precision = field(default="float32", metadata=_stored())
    """What networks compute in: `float32`, or `bf16`; parameters, statistics and losses have 32 bits in either case."""
    run_dir: str | Path | None = None
    """Where the run is stored. None: a new directory under runs/."""
    stop_at_return: float | None = field(default=None, metadata=_stored())
    """Ends the run at this mean return of 100 episodes."""
    launcher: str | HostLauncher = "local"
    """Starts the workers: `local`, `ray`, or a launcher of the user's own."""
    address: str | None = None
    """Address of the Ray cluster."""
    transport: Transport | str | None = None
    """Moves messages between workers: a transport of the user's own. None: shared memory and TCP."""
    quiet: bool = False
    """Prints nothing."""
    wandb: bool = field(default=False, metadata=_stored())
    """Also logs to Weights & Biases."""
    sinks: Sequence[Sink | str] = ()
    """More receivers of metrics: the user's own, or the names of trackers."""
    metrics_port: int | None = field(default=None, metadata=_ranged(_whole(0, 65535)))
    """Serves metrics for Prometheus on this port during the run; 0: on a free port, which is printed."""
    metrics_address: str = "127.0.0.1"
    """The address of this machine on which `metrics_port` is opened."""
    on_update: Callback | None = None
    """Called several times a second at most, if there were updates since the last call."""
    on_evaluation: Callback | None = None
    """Called after each evaluation."""
    on_checkpoint: Callback | None = None
    """Called after each checkpoint."""
    callback_every_s: float = field(default=1.0, metadata=_ranged(Range(lambda x: x >= 0, "0 seconds or more")))
    """The shortest time between two calls of `on_update`."""
    callback_every: int | None = field(default=None, metadata=_ranged(STEPS))
    """Environment steps between two calls of `on_update`, instead of `callback_every_s`."""
    checkpoint_every_s: float = field(default=60.0, metadata=_stored(SECONDS))
    """The time between two checkpoints."""
    restarts: int = field(default=10, metadata=_stored(Range(lambda x: x >= 0, "a whole number, 0 or more")))
    """The number of lost workers that are replaced within ten minutes before the run ends."""
    hang_after_s: float = field(default=120.0, metadata=_stored(SECONDS))
    """The time without a heartbeat after which a worker is replaced."""
    on_nan: OnNan = field(default="stop", metadata=_stored())
    """What to do when an update is refused because something is not finite."""
    init_from: Source | Mapping[str, Source] | None = field(
        default=None, metadata=_stored(as_json=lambda x: x is None or isinstance(x, str | dict))
    )
    """Stored policies with whose parameters training begins."""
    frozen: Mapping[str, Source] | None = field(default=None, metadata=_stored(as_json=_names_policies))
    """By group: stored policies that act for groups that do not learn."""
    opponents: Matchmaker | type[Matchmaker] | str | None = None
    """A matchmaker, which chooses past policies as opponents."""
    eval_every: int | None = field(default=None, metadata=_stored(STEPS))
    """Environment steps between two evaluations; the policy is also evaluated at the beginning and at the end."""
    eval_episodes: int = field(default=10, metadata=_stored(_whole(1, MOST_EPISODES)))
    """Episodes of an evaluation."""
    eval_seed: int | None = field(default=None, metadata=_stored(SEED))
    """Seed of all evaluations. None: the run's seed plus 10,000."""
    eval_env_settings: dict[str, Any] | None = field(default=None, metadata=_stored())
    """Settings of the environment that differ in evaluation."""
    eval_workers: int | None = field(default=None, metadata=_stored(_whole(0, 1024)))
    """Processes that evaluate. None: one if training runs in several processes; else none, and training waits."""
    eval_wait: bool = field(default=False, metadata=_stored())
    """Training waits for each evaluation, so decisions that follow from it are the same in every run."""
    eval_explore: bool = field(default=False, metadata=_stored())
    """Acts in evaluation as in training, instead of greedily."""
    eval_metric: str | None = field(default=None, metadata=_stored())
    """The metric of the best policy: `return`, `return/GROUP`, `length` or `env/NAME`; `min:NAME` if less is better."""
    stop_at_eval_return: float | None = field(default=None, metadata=_stored())
    """Ends the run at this mean return of an evaluation."""
    keep_every: int | None = field(default=None, metadata=_stored(STEPS))
    """Keeps one policy in this many environment steps."""
    keep_every_s: float | None = field(default=None, metadata=_stored(SECONDS))
    """Keeps one policy in this many seconds."""
    keep_best: int = field(
        default=1, metadata=_stored(Range(lambda x: 0 <= x <= 1_000_000, "a whole number, 0 or more"))
    )
    """The number of best policies, by evaluation, that are kept."""
    settings: dict[str, Any] | None = None
    """Settings of the algorithm."""
    env_settings: dict[str, Any] | None = None
    """Settings of the environment."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            expected = out_of_range(name, value)
            if expected:
                raise UserError(f"{name}={value!r}: found {value!r}, expected {expected}", keywords=(name,))
        for name in ("stop_at_eval_return", "eval_env_settings", "eval_workers", "eval_metric"):
            if getattr(self, name) is not None and self.eval_every is None:
                raise UserError(
                    f"{name}={getattr(self, name)!r}: found it without eval_every=, expected how often to evaluate",
                    keywords=(name, "eval_every"),
                )

        both = sorted(set(self.frozen or ()) & set(self.init_from if isinstance(self.init_from, Mapping) else ()))
        if both:
            raise UserError(
                f"frozen=, init_from=: found both for group '{both[0]}', expected one of them: a frozen group does not "
                "learn",
                keywords=("frozen", "init_from"),
            )

    @property
    def snapshot_periods(self) -> tuple[int, ...]:
        """Snapshots are due at multiples of these numbers of environment steps."""
        return tuple(period for period in (self.eval_every, self.keep_every) if period is not None)

    @property
    def optional_snapshots(self) -> tuple[int, ...]:
        """Of these: the periods of snapshots for evaluations alone that training does not wait for."""
        every = self.eval_every
        return () if self.eval_wait or every is None or every == self.keep_every else (every,)

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> RunConfig:
        """From the arguments of a call, among others."""
        return cls(**{each.name: arguments[each.name] for each in fields(cls)})


_RANGES: Final[Mapping[str, Range]] = {
    each.name: each.metadata["range"] for each in fields(RunConfig) if each.metadata.get("range")
}

_OPTIONAL: Final = frozenset(each.name for each in fields(RunConfig) if "None" in str(each.type))


def out_of_range(name: str, value: Any) -> str | None:
    """What a field of `RunConfig` expects instead of a number; None where it fits."""
    numbers = _RANGES.get(name)
    unset = value is None and name in _OPTIONAL
    return None if numbers is None or unset or numbers.fits(value) else numbers.expected


# config.json

STORED: Final = tuple(each.name for each in fields(RunConfig) if each.metadata.get("stored"))
"""The fields that config.json keeps. `settings`, `opponents` and `env_settings` are kept with the algorithm and the
environment; the others belong to one process and its machine."""

_AS_JSON: Final[Mapping[str, Callable[[Any], bool]]] = {
    "None": lambda x: x is None,
    "bool": lambda x: isinstance(x, bool),
    "int": lambda x: type(x) is int,
    "float": lambda x: type(x) in (int, float),
    "str": lambda x: isinstance(x, str),
    "dict[str, Any]": lambda x: isinstance(x, dict),
    "OnNan": lambda x: x in get_args(OnNan),
    "Precision": lambda x: x in get_args(Precision),
}
"""By a word of a field's annotation: the values of JSON that it admits."""


def _as_annotated(annotation: str) -> Callable[[Any], bool]:
    admits = [_AS_JSON[word] for word in annotation.split(" | ")]
    return lambda x: any(each(x) for each in admits)


_WELL_FORMED: Final[Mapping[str, Callable[[Any], bool]]] = {
    "algorithm": lambda x: isinstance(x, dict),
    "distribution": lambda x: isinstance(x, dict),
    "environment": lambda x: (
        isinstance(x, dict) and isinstance(x.get("name"), str) and isinstance(x.get("settings"), dict)
    ),
    **{
        each.name: each.metadata["as_json"] or _as_annotated(str(each.type))
        for each in fields(RunConfig)
        if each.name in STORED
    },
    "code": lambda x: isinstance(x, dict),
}
"""The fields of config.json and their types. They are checked, since the file may have been edited."""

KEYS: Final = ("runnel_version", "format", *_WELL_FORMED)
"""Every key of config.json."""

_REQUIRED: Final = ("algorithm", "distribution", "environment", "envs", "steps", "seed", "stop_at_return",
                    "checkpoint_every_s")  # fmt: skip


def to_json(run: RunConfig, parts: Mapping[str, Any], code: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The whole of config.json. `parts` describe algorithm, environment and distribution; `code` is the signature."""
    stored = {name: getattr(run, name) for name in STORED}
    stored |= {name: _named(stored[name]) for name in ("init_from", "frozen")}
    signed = {} if code is None else {"code": code}
    return {"runnel_version": __version__, "format": FORMAT, **parts, **stored, **signed}


def _named(source: Any) -> Any:
    """A stored policy, or several by group, as config.json names them: for people to read, and for `--config`."""
    if isinstance(source, Mapping):
        return {str(group): _named(each) for group, each in source.items()}
    return None if source is None else str(source)


def from_json(config: Mapping[str, Any]) -> RunConfig:
    """What config.json asks for. Fields that an older version did not have take their defaults."""
    return RunConfig(**{name: config[name] for name in STORED if name in config})


def check_json(path: Path | str, config: Mapping[str, Any]) -> None:
    """Refuses a config.json that a newer version has written, or none."""
    check_format(path, config)
    for name, fits in _WELL_FORMED.items():
        if name in config and (not fits(config[name]) or out_of_range(name, config[name])):
            raise UserError(f"{path}: '{name}' is {str(config[name])[:60]!r}, which no run has; was the file edited?")


def read_field(name: str, value: Any) -> tuple[Any, str | None]:
    """A field of `RunConfig` as a user wrote it, and what it expects instead, in words; None where it fits."""
    value, expected = settings.check_field(RunConfig, name, value)
    return value, expected or out_of_range(name, value)


def check_complete(path: Path | str, config: Mapping[str, Any]) -> None:
    """Refuses a config.json that lacks what every version has written."""
    for missing in [name for name in _REQUIRED if name not in config]:
        raise UserError(f"{path} has no '{missing}', which every run has; was the file edited?")


def check_format(path: Path | str, config: Any) -> None:
    """Refuses a config.json of a newer format."""
    found = config.get("format", FORMAT) if isinstance(config, Mapping) else FORMAT
    if type(found) is not int or found < 1:
        raise UserError(f"{path}: 'format' is {str(found)[:60]!r}, which no run has; was the file edited?")
    if found > FORMAT:
        version = str(config.get("runnel_version"))
        by = f"Runnel {version}" if re.fullmatch(r"\d[\w.+-]{0,30}", version) else "a newer Runnel"
        raise UserError(
            f"{path}: found format {found}, written by {by}; expected format {FORMAT} or older, which Runnel "
            f"{__version__} reads; use {by} for this run",
            page="run-directory#configjson",
        )
