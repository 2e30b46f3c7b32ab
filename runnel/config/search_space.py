"""The settings that a sweep varies, and the values that each may take.

    over = {"learning_rate": LogUniform(1e-4, 1e-2), "unroll": [64, 128]}

On the command line: `--over learning_rate=log:1e-4:1e-2 unroll=64,128`. A space is data: it is written to sweep.json
and read from there, where a stranger may have edited it.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from runnel import deprecated
from runnel.config import settings
from runnel.errors import UserError, nearest

if TYPE_CHECKING:
    from numpy.random import Generator

MOST_SETTINGS: Final = 64
MOST_CHOICES: Final = 1024
LARGEST: Final = {int: 2**53, float: 1e300}
"""Beyond these, samplers overflow."""


@dataclass(frozen=True)
class LogUniform:
    """A float whose logarithm is uniform: `log:LOW:HIGH`."""

    low: float
    high: float

    def sample(self, rng: Generator) -> float:
        found = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(found, self.low), self.high)  # exp(log(x)) may be next to x


@dataclass(frozen=True)
class Uniform:
    """A float, uniform between two limits: `LOW:HIGH`."""

    low: float
    high: float

    def sample(self, rng: Generator) -> float:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class IntUniform:
    """A whole number, both ends included: `int:LOW:HIGH`."""

    low: int
    high: int


@dataclass(frozen=True)
class Choice:
    """One of several values: `A,B,C`; from Python, a list."""

    values: tuple[Any, ...]


Range: TypeAlias = LogUniform | Uniform | IntUniform | Choice
Space: TypeAlias = dict[str, Range]

_KINDS: Final[Mapping[str, type]] = {"log": LogUniform, "uniform": Uniform, "int": IntUniform, "choice": Choice}
_SYNTAX: Final = "log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH or A,B,C"


def parse(cls: type, pairs: Iterable[str], what: str = "") -> Space:
    """`["learning_rate=log:1e-4:1e-2"]` as a space, by the annotations of an algorithm's class."""
    hints = settings.hints_of(cls)
    found: dict[str, Any] = {}
    for pair in pairs:
        name, text = settings.split(pair)
        name = _known(cls, name, what)
        if name in found:
            raise UserError(f"over={pair}: found '{name}' twice, expected each setting once", keywords=("over",))
        found[name] = _read(name, text, hints[name])
    return checked(cls, found, what)


def checked(cls: type, over: Mapping[str, Any], what: str = "") -> Space:
    """A search space given in Python; raises UserError if a setting cannot have its values."""
    hints = settings.hints_of(cls)
    if not isinstance(over, Mapping) or not 1 <= len(over) <= MOST_SETTINGS:
        raise UserError(
            f"over=: found {settings.shown(over)}, expected 1 to {MOST_SETTINGS} settings with the values to try",
            keywords=("over",),
        )
    found: Space = {}
    for given, values in over.items():
        name = _known(cls, given, what)
        found[name] = _fitting(name, values, hints[name])
    return found


def floats(space: Space) -> list[str]:
    """The settings whose values are floats: under `fused`, arguments of the program."""

    def has_floats(values: Range) -> bool:
        if isinstance(values, Choice):
            return all(type(value) is float for value in values.values)
        return isinstance(values, LogUniform | Uniform)

    return [name for name, values in space.items() if has_floats(values)]


def grid(space: Space) -> list[dict[str, Any]]:
    """Every combination, the last setting varying fastest."""
    axes = []
    for name, values in space.items():
        if isinstance(values, Choice):
            axes.append(values.values)
        elif isinstance(values, IntUniform):
            axes.append(range(values.low, values.high + 1))
        else:
            raise UserError(
                f"over={name}: found a range of floats, expected a list of values for sampler=grid: {name}=A,B,C",
                keywords=("over", "sampler"),
            )
    if math.prod(map(len, axes)) > 1_000_000:
        raise UserError("over=: found a grid of more than 1,000,000 points, expected fewer values", keywords=("over",))
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*axes)]


def contains(values: Range, value: Any) -> bool:
    """Whether a setting may have a value."""
    if isinstance(values, Choice):
        return any(type(each) is type(value) and each == value for each in values.values)
    kind = int if isinstance(values, IntUniform) else float
    return type(value) is kind and values.low <= value <= values.high


def probes(space: Space) -> list[dict[str, Any]]:
    """Combinations that are checked before anything is trained: each value or end of a range, with the other settings
    at their first values."""
    ends = {name: list(v.values) if isinstance(v, Choice) else [v.low, v.high] for name, v in space.items()}
    first = {name: each[0] for name, each in ends.items()}
    return [first, *({**first, name: value} for name, each in ends.items() for value in each[1:])]


# As data


def to_json(space: Space) -> dict[str, Any]:
    """The space in the form of sweep.json."""
    names = {cls: kind for kind, cls in _KINDS.items()}
    return {name: {"kind": names[type(values)], **asdict(values)} for name, values in space.items()}


def from_json(cls: type, data: Any) -> Space:
    """Reads a search space from sweep.json. Raises UserError if it is invalid."""
    if not isinstance(data, dict):
        raise UserError("found no space, expected settings with the values to try")
    found = {}
    for name, each in data.items():
        kind: Any = _KINDS.get(str(each.get("kind"))) if isinstance(each, dict) else None
        fields = {key: value for key, value in each.items() if key != "kind"} if kind else {}
        if kind is None or fields.keys() != kind.__dataclass_fields__.keys():
            raise UserError(f"found '{str(name)[:60]}' with {str(each)[:60]!r}, which no space has")
        if kind is Choice:
            if not isinstance(fields["values"], list):
                raise UserError(f"found '{str(name)[:60]}' with {str(each)[:60]!r}, which no space has")
            fields = {"values": tuple(_as_tuple(value) for value in fields["values"])}
        found[name] = kind(**fields)
    return checked(cls, found)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


# Checks


def _known(cls: type, name: Any, what: str) -> str:
    known = [*settings.hints_of(cls)]
    renamed = deprecated.renamed_fields(cls)
    if name in renamed:
        deprecated.warn(f"setting '{name}' of {what or cls.__name__}", f"'{renamed[name]}'")
        name = renamed[name]
    if name not in known:
        shown = str(name)[:60]
        if shown.startswith(("env.", "distribution.", "eval.")):
            raise UserError(
                f"over={shown}: found a setting of the {shown.partition('.')[0]}, expected one of the algorithm; give "
                "others by --set, the same for every trial",
                keywords=("over",),
            )
        raise UserError(f"{what or cls.__name__} has no setting '{shown}'{nearest(shown, known)}", keywords=("over",))
    return name


def _read(name: str, text: str, hint: Any) -> Any:
    head, *ends = text.split(":")
    if head in ("log", "int") and len(ends) == 2:
        kind: type = LogUniform if head == "log" else IntUniform
    elif len(ends) == 1 and _reads_as_number(head) and _reads_as_number(ends[0]):
        kind, ends = Uniform, [head, *ends]
    elif head in ("log", "int"):
        raise UserError(
            f"over={name}={text}: found {text}, expected {_SYNTAX}", keywords=("over",), page="sweeps#the-space"
        )
    else:
        return Choice(tuple(settings.convert(name, part, hint) for part in _parts(text)))
    number = int if kind is IntUniform else float
    return kind(*(settings.convert(name, end, number) for end in ends))


def _parts(text: str) -> list[str]:
    """`64,128`, or `(64,64),(128,)`: commas inside brackets do not separate."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _reads_as_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _fitting(name: str, values: Any, hint: Any) -> Range:
    if isinstance(values, Sequence) and not isinstance(values, str):
        values = Choice(tuple(values))
    if isinstance(values, Choice):
        return Choice(_choices(name, values.values, hint))
    if not isinstance(values, LogUniform | Uniform | IntUniform):
        expected = "a list of values, or runnel.LogUniform, runnel.Uniform or runnel.IntUniform"
        raise UserError(f"over={name}: found {settings.shown(values)}, expected {expected}", keywords=("over",))
    kind = int if isinstance(values, IntUniform) else float
    wanted = typing.get_args(hint) or (hint,)
    if hint is not Any and kind not in wanted and not (kind is int and float in wanted):
        other = "int:LOW:HIGH" if int in wanted else "a list of values"
        raise UserError(f"over={name}: found a range of {kind.__name__}s, expected {other}", keywords=("over",))
    ends = [kind(end) if _is_real(end, kind) else None for end in (values.low, values.high)]
    low, high = ends
    if low is None or high is None or not low < high or (isinstance(values, LogUniform) and low <= 0):
        above = "0 < LOW < HIGH" if isinstance(values, LogUniform) else "LOW < HIGH"
        found = f"{str(values.low)[:40]} to {str(values.high)[:40]}"
        raise UserError(f"over={name}: found {found}, expected {above}, finite numbers", keywords=("over",))
    made: Any = type(values)
    return made(low, high)


def _is_real(value: Any, kind: type) -> bool:
    if type(value) not in (int, float) or not abs(value) <= LARGEST[kind]:
        return False
    return kind is float or float(value).is_integer()


def _choices(name: str, values: Sequence[Any], hint: Any) -> tuple[Any, ...]:
    if not 1 <= len(values) <= MOST_CHOICES:
        raise UserError(f"over={name}: found {len(values)} values, expected 1 to {MOST_CHOICES}", keywords=("over",))
    found: list[Any] = []
    for value in values:
        value, expected = settings.fitted(value, hint)
        if not _is_plain(value):
            expected = expected or "a number, text without ':', true, false, none, or a tuple of these"
        if expected:
            raise UserError(f"over={name}: found {settings.shown(value)}, expected {expected}", keywords=("over",))
        if any(type(each) is type(value) and each == value for each in found):
            raise UserError(f"over={name}: found {value!r} twice, expected each value once", keywords=("over",))
        found.append(value)
    return tuple(found)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= 64 and all(map(_is_plain, value))
    if type(value) in LARGEST:
        return abs(value) <= LARGEST[type(value)]
    if isinstance(value, str):
        return ":" not in value and len(value) <= 200  # `module:name` would name code, which a space never does
    return type(value) in (bool, type(None))
