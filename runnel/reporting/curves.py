"""Learning curves as runs have written them, and what to call them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.config.run_config import check_format
from runnel.errors import UserError, nearest, printable
from runnel.recording import run_directory
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.files import read_json
from runnel.recording.metrics import records
from runnel.reporting.statistics import flat

MOST_SETTINGS: Final = 4
"""How many settings are shown of those that distinguish a run from others."""

EVALUATION: Final = "eval/"
"""Metrics of evaluations begin with this."""

RETURN: Final = "mean_return"
"""The metric that is drawn unless another is asked for; of this one there are points between the records too."""

MOST_POINTS: Final = 2_000_000
MOST_NAMES: Final = 10_000
MOST: Final = 1e100
"""Pictures of larger numbers overflow."""


class NoCurve(UserError):
    """A run that has no point of a metric, or not yet."""


class Curve(NamedTuple):
    """One run."""

    run_dir: Path
    names: tuple[str, ...]  # algorithm, environment, distribution
    settings: dict[str, str]  # of all three
    seed: str
    env_steps: np.ndarray  # [N]
    values: np.ndarray  # [N] of the metric


def read_curve(run_dir: Path | str, metric: str = RETURN) -> Curve:
    """A run's curve and what to call it."""
    run_dir = Path(run_dir)
    if not run_dir.is_dir() or not run_directory.exists(run_dir, "config.json"):
        found = "a directory without config.json" if run_dir.is_dir() else "nothing"
        raise UserError(f"{run_dir} is no run: found {found}, expected a directory that `runnel train` made")
    points: list[tuple[float, float]] = []
    known: set[str] = set()
    evaluated = metric.startswith(EVALUATION)
    for record in _evaluations(run_dir) if evaluated else records(run_dir):
        if len(known) < MOST_NAMES:
            known.update(record)
        between: Any = record.get("curve") if metric == RETURN else None
        here = [record.get("env_steps"), record.get(metric)]
        found = [*(between if isinstance(between, list) else ()), here]
        points += [_point(point, run_dir) for point in found if isinstance(point, list) and None not in point]
        if len(points) > MOST_POINTS:
            raise UserError(f"{run_dir}/metrics.jsonl has more than {MOST_POINTS:,} points, which no run writes")
    if not points and metric not in known and metric != RETURN:
        named = sorted(known - {"curve", "env_steps"})
        raise NoCurve(f"metric={metric}: {run_dir} has none of that name{nearest(metric, named)}", keywords=("metric",))
    if not points:
        raise NoCurve(f"{run_dir} has no curve yet: no episode has ended; let it train for longer")
    env_steps, values = np.array(points, np.float64).T
    return Curve(run_dir, *configuration(run_dir), env_steps, values)


def curve_of(run_dir: Path, points: tuple[np.ndarray, np.ndarray] | None, metric: str = RETURN) -> Curve:
    """The curve of a run whose points are kept elsewhere: environment steps and values."""
    if points is None:
        raise NoCurve(f"{run_dir} has no {metric} yet; let it train for longer")
    return Curve(run_dir, *configuration(run_dir), *points)


def _evaluations(run_dir: Path) -> Iterator[dict[str, Any]]:
    """A record for each evaluation, at the environment steps of what was evaluated."""
    for found in read_evaluations(run_dir):
        try:
            yield {"env_steps": found["env_steps"], **flat(found)}
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{run_dir}/evaluations.jsonl is damaged: {type(error).__name__}: {error}") from None


def _point(point: list[Any], run_dir: Path) -> tuple[float, float]:
    """Steps and return, as a run writes them."""
    if len(point) != 2 or not all(type(x) in (int, float) and abs(x) <= MOST for x in point):
        raise UserError(f"{run_dir}/metrics.jsonl is damaged: found the point {str(point)[:60]}, expected two numbers")
    return float(point[0]), float(point[1])


def configuration(run_dir: Path) -> tuple[tuple[str, ...], dict[str, str], str]:
    """What a run is called by: names, settings and seed."""
    try:
        config = read_json(run_dir, "config.json")
        check_format(run_dir / "config.json", config)
        environment = config["environment"]
        if isinstance(environment, dict):
            environment = environment["name"]
        names = (_name(config["algorithm"]), str(environment), _name(config["distribution"]))
        settings = {f"{prefix}{key}": value for part, prefix in (("algorithm", ""), ("environment", "env."),
                    ("distribution", "")) for key, value in _settings(config[part]).items()}  # fmt: skip
        settings |= {"envs": config["envs"]} if "envs" in config else {}
        shown = {_text(key): _text(value) for key, value in settings.items()}
        return tuple(map(_text, names)), shown, f"seed {_text(config['seed'])}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{run_dir}/config.json is damaged: {type(error).__name__}: {error}") from error


def read_names(run_dir: Path) -> tuple[str, ...]:
    """The names of a run's algorithm, environment and distribution."""
    return configuration(run_dir)[0]


def _settings(described: Any) -> dict[str, Any]:
    return dict(described.get("settings") or {}) if isinstance(described, dict) else {}


def _text(value: Any) -> str:
    """A value of a configuration in a few words."""
    match value:
        case {"class": _}:
            value = _name(value)
        case {"object": path}:
            value = _name(path)
        case {"float": text} | {"unavailable": text}:
            value = text
        case {"list": parts} | {"dict": parts}:
            value = parts
    if isinstance(value, list):
        value = ",".join(map(_text, value))
    return printable(str(value).lower() if value is None or isinstance(value, bool) else str(value))[:200]


def labels(curves: Sequence[Curve]) -> tuple[str, list[str]]:
    """What all runs share, and what distinguishes each: names, settings, the seed, else its directory."""
    facts = [dict(enumerate((*curve.names, curve.seed))) for curve in curves]
    shared = [fact for i, fact in facts[0].items() if len({each[i] for each in facts}) == 1]
    differ = [i for i in facts[0] if len({each[i] for each in facts}) > 1]
    # Those of environments first: of many settings not all are shown.
    keys = sorted(dict.fromkeys(key for curve in curves for key in curve.settings), key=lambda k: not _of_env(k))
    texts = [{key: text for key in keys if (text := _setting(curve, key, curves))} for curve in curves]
    keys = [key for key in keys if len({text[key] for text in texts if key in text}) > 1]
    found = []
    for fact, text in zip(facts, texts, strict=True):
        own = [text[key] for key in keys if key in text]
        own = [*own[:MOST_SETTINGS], f"{len(own) - MOST_SETTINGS} more"] if len(own) > MOST_SETTINGS else own
        seed = [fact[3]] if 3 in differ else []
        found.append(", ".join([*(fact[i] for i in differ if i < 3), *own, *seed]))
    same = {label for label in found if found.count(label) > 1}
    for i, curve in enumerate(curves):
        if found[i] in same:
            found[i] = ", ".join(filter(None, [found[i], _text(curve.run_dir.absolute().name)]))
    return ", ".join(shared), found if len(curves) > 1 else [""]


def _of_env(key: str) -> bool:
    return key.startswith("env.")


def _setting(curve: Curve, key: str, curves: Sequence[Curve]) -> str:
    """`env.size=6`; `env.size default` where only other runs of the same environment say; else nothing.

    Of an environment only those settings are stored that were given.
    """
    if key in curve.settings:
        return f"{key}={curve.settings[key]}"
    others = (other for other in curves if other.names[1] == curve.names[1])
    return f"{key} default" if _of_env(key) and any(key in other.settings for other in others) else ""


def _name(described: Any) -> str:
    """`{"class": "module:PPO"}` -> `ppo`."""
    path = described["class"] if isinstance(described, dict) else described
    return str(path or "unnamed").rpartition(":")[2].rpartition(".")[2].lower()
