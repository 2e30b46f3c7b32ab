"""What there is to choose from: algorithms, distributions and environments, read from their source.

Nothing that needs JAX is imported, so that `runnel list` answers at once.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel import settings
from runnel.errors import UserError, nearest
from runnel.settings import Setting

if TYPE_CHECKING:
    from runnel.envs import Scheme

ACTIONS = ("Discrete", "MultiDiscrete", "Box")
"""The kinds of action that an algorithm which names none can take."""

FLAGS = ("actors", "inference", "learners")
"""The fields of a distribution that are flags of the command line."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """An algorithm, in words."""

    name: str
    summary: str
    actions: tuple[str, ...]
    settings: tuple[Setting, ...]
    tuned: Mapping[str, Mapping[str, Any]]  # by environment: settings that are known to serve


@dataclass(frozen=True)
class DistributionEntry:
    """A distribution, in words."""

    name: str
    summary: str
    settings: tuple[Setting, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings if setting.name in FLAGS)


def algorithms() -> list[AlgorithmEntry]:
    from runnel.algorithms import REGISTRY
    from runnel.tuned import TUNED

    entries = []
    for name, path in REGISTRY.items():
        source = _Source(path)
        known = {environment: found for (algorithm, environment), found in TUNED.items() if algorithm == name}
        entries.append(AlgorithmEntry(name, source.summary, source.actions, source.settings, known))
    return entries


def distributions() -> list[DistributionEntry]:
    from runnel.distributions import REGISTRY

    sources = {name: _Source(path) for name, path in REGISTRY.items()}
    return [DistributionEntry(name, source.summary, source.settings) for name, source in sources.items()]


def environments() -> list[Scheme]:
    """How environments are named."""
    from runnel import envs

    return envs.schemes()


def find(name: str) -> AlgorithmEntry | DistributionEntry:
    """A built-in algorithm or distribution, or the user's own at `package.module:Name`."""
    known = {entry.name: entry for entry in (*algorithms(), *distributions())}
    if name.lower() in known:
        return known[name.lower()]
    if ":" in name:
        return _own(name)
    raise UserError(f"there is no algorithm or distribution '{name}'{nearest(name, known)}")


def as_json() -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "algorithms": [plain(entry) for entry in algorithms()],
        "distributions": [{**plain(entry), "flags": list(entry.flags)} for entry in distributions()],
        "environments": [{**scheme._asdict(), "installed": scheme.installed} for scheme in environments()],
    }


def plain(entry: AlgorithmEntry | DistributionEntry) -> dict[str, Any]:
    """An entry, for programs."""
    return {**asdict(entry), "settings": [setting._asdict() for setting in entry.settings]}


def described(entry: AlgorithmEntry | DistributionEntry) -> str:
    """An algorithm or a distribution with its settings."""
    lines = [f"{entry.name}: {entry.summary}"]
    actions = getattr(entry, "actions", None)
    if actions:
        lines.append(f"actions: {', '.join(actions)}")
    lines.append("\nsettings (--set NAME=VALUE)" if entry.settings else "\nno settings")
    lines += table([(f"{row.name}={row.default}", row.type, row.doc) for row in entry.settings])
    for environment, known in getattr(entry, "tuned", {}).items():
        pairs = " ".join(f"{key}={settings.default_text(value)}" for key, value in known.items())
        lines += [f"\ntuned for {environment}", f"  {pairs}"]
    return "\n".join(lines)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns below each other."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return ["  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _own(path: str) -> AlgorithmEntry | DistributionEntry:
    from runnel.algorithm import Algorithm
    from runnel.plan import Distribution
    from runnel.portable import import_object

    cls = import_object(path)
    if not isinstance(cls, type) or not issubclass(cls, Algorithm | Distribution):
        raise UserError(f"{path} is neither an Algorithm nor a Distribution")
    summary, rows = _first_line(cls.__doc__), tuple(settings.describe(cls))
    if issubclass(cls, Algorithm):
        return AlgorithmEntry(path, summary, tuple(kind.__name__ for kind in cls.actions), rows, {})
    return DistributionEntry(path, summary, rows)


class _Source:
    """The class at an import path, as its source has it."""

    def __init__(self, path: str):
        module, _, name = path.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None, module
        self._text = Path(spec.origin).read_text(encoding="utf-8")
        tree = ast.parse(self._text)
        self.summary = _first_line(ast.get_docstring(tree))
        self._class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    @property
    def settings(self) -> tuple[Setting, ...]:
        docs = settings.field_docs(self._class, self._text)
        return tuple(
            Setting(node.target.id, _type(node.annotation), _value(node.value), docs[node.target.id])
            for node in self._class.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_class_wide(node)
        )

    @property
    def actions(self) -> tuple[str, ...]:
        for node in self._class.body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id="actions"), value=ast.Tuple(elts=kinds))
                    | ast.Assign(targets=[ast.Name(id="actions")], value=ast.Tuple(elts=kinds))
                ):
                    return tuple(ast.unparse(kind) for kind in kinds)
        return ACTIONS


def _is_class_wide(node: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(node.annotation)


def _type(node: ast.expr) -> str:
    match node:
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return " | ".join(str(ast.literal_eval(choice)) for choice in choices)
    return ast.unparse(node).replace("None", "none")


def _value(node: ast.expr | None) -> str:
    if node is None:
        return "required"
    try:
        return settings.default_text(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
