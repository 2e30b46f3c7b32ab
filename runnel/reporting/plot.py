"""A picture of learning curves: mean return, or another metric, over environment steps, one line a run."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.config.run_config import check_format
from runnel.errors import UserError, nearest, printable
from runnel.recording import run_directory
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.files import read_json, write_atomically
from runnel.recording.metrics import records
from runnel.reporting.statistics import flat

FORMATS: Final = ("png", "svg", "pdf")
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#999933")
"""Okabe and Ito's, which the colour-blind can distinguish."""

MOST_SETTINGS: Final = 4
"""How many settings are shown of those that distinguish a run from others."""

NOISY: Final = 8.0
"""A curve that goes up and down by this many times its own range is smoothed."""


EVALUATION: Final = "eval/"
"""Metrics of evaluations begin with this."""

RETURN: Final = "mean_return"
"""The metric that is drawn unless another is asked for; of this one there are points between the records too."""

MOST_POINTS: Final = 2_000_000
MOST_NAMES: Final = 10_000
MOST: Final = 1e100
"""Pictures of larger numbers overflow."""


class Curve(NamedTuple):
    """One run."""

    run_dir: Path
    names: tuple[str, ...]  # algorithm, environment, distribution
    settings: dict[str, str]  # of all three
    seed: str
    env_steps: np.ndarray  # [N]
    values: np.ndarray  # [N] of the metric


def plot(run_dirs: Sequence[Path | str], out: Path | str, metric: str = RETURN) -> Path:
    """Draws the runs into one picture and gives its path; the ending of `out` says what kind of picture.

    `metric` is a name in metrics.jsonl, such as `env/is_success`, or one of evaluations, such as `eval/return`.
    """
    out = Path(out)
    kind = out.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise UserError(
            f"out={out}: found ending '{out.suffix}', expected .{', .'.join(FORMATS[:-1])} or .{FORMATS[-1]}",
            keywords=("out",),
        )
    if not out.absolute().parent.is_dir():
        raise UserError(f"out={out}: there is no directory {out.parent}; make it first", keywords=("out",))
    curves = [read_curve(run_dir, metric) for run_dir in run_dirs]
    picture = io.BytesIO()
    _draw(curves, metric).savefig(picture, format=kind, dpi=160)
    write_atomically(out, picture.getvalue())
    return out


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
        raise UserError(
            f"metric={metric}: {run_dir} has none of that name{nearest(metric, named)}", keywords=("metric",)
        )
    if not points:
        raise UserError(f"{run_dir} has no curve yet: no episode has ended; let it train for longer")
    env_steps, values = np.array(points, np.float64).T
    return Curve(run_dir, *_configuration(run_dir), env_steps, values)


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


def _configuration(run_dir: Path) -> tuple[tuple[str, ...], dict[str, str], str]:
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


def _plain(text: str) -> str:
    """As matplotlib draws it letter by letter: between two dollars it would read a formula."""
    return text.replace("$", r"\$")


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


def _draw(curves: Sequence[Curve], metric: str) -> Any:
    # The object-oriented way: pyplot would look for a display and keep every figure.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    shared, labelled = labels(curves)
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        style = ("-", "--", ":", "-.")[number // len(COLOURS) % 4]
        label = _plain(labelled[number]) or None
        smooth = _smoothed(curve.values)
        if smooth is not curve.values:
            axes.plot(curve.env_steps, curve.values, color=colour, alpha=0.25, linewidth=0.8)
        marker = "o" if len(curve.env_steps) == 1 else None
        axes.plot(curve.env_steps, smooth, color=colour, linestyle=style, linewidth=1.8, label=label, marker=marker)
    axes.set_title(_plain(shared), loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("mean return of the last 100 episodes" if metric == RETURN else _plain(printable(metric)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(color="#888888")
    if any(labelled):
        axes.legend(frameon=False, fontsize=9, loc="best")
    return figure


def _smoothed(values: np.ndarray) -> np.ndarray:
    """The curve itself, or a running mean over 1/30 of it where it jumps about."""
    span = np.ptp(values)
    if len(values) < 30 or np.abs(np.diff(values)).sum() <= NOISY * span:
        return values
    width = max(3, len(values) // 30) | 1
    padded = np.pad(values, width // 2, mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")
