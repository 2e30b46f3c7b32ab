"""What there is to choose from: algorithms, distributions and environments, read from their source.

Nothing that needs JAX is imported, so that `runnel list` answers at once.
"""

from __future__ import annotations

import ast
import functools
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.config import setting_docs, settings
from runnel.config.setting_docs import Setting
from runnel.errors import UserError, did_you_mean, near, nearest
from runnel.user_code import source_scan

if TYPE_CHECKING:
    from runnel.envs import Scheme

ACTIONS = ("Discrete", "MultiDiscrete", "Box")
"""The kinds of action that an algorithm which names none can take."""

FLAGS = ("actors", "inference", "learners")
"""The fields of a distribution that are flags of the command line."""

WIDTH = 100
"""The most columns that a line takes."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """An algorithm, in words."""

    name: str
    summary: str
    actions: tuple[str, ...]
    distributions: tuple[str, ...]  # of the built-in ones, those that it runs under
    settings: tuple[Setting, ...]
    tuned: Mapping[str, Mapping[str, Any]]  # by environment: settings that are known to serve


@dataclass(frozen=True)
class DistributionEntry:
    """A distribution, in words."""

    name: str
    summary: str
    needs: tuple[str, ...]  # kinds of node that an algorithm's loop must have
    settings: tuple[Setting, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(setting.name for setting in self.settings if setting.name in FLAGS)


def algorithms() -> list[AlgorithmEntry]:
    from runnel.algorithms import ALIASES, REGISTRY
    from runnel.config.presets import TUNED

    entries = {}
    for name, path in sorted(REGISTRY.items()):
        source = _Source(path)
        known = {environment: found for (algorithm, environment), found in TUNED.items() if algorithm == name}
        entries[name] = AlgorithmEntry(
            name, source.summary, source.actions, _distributions(source.methods), source.settings, known
        )
    for alias, name in ALIASES.items():
        entries[alias] = replace(entries[name], name=alias, summary=f"another name of {name}, for several agents")
    return [entries[name] for name in sorted(entries)]


def _distributions(methods: Collection[str]) -> tuple[str, ...]:
    """Those that an algorithm with these methods runs under."""
    return tuple(entry.name for entry in distributions() if set(entry.needs) <= set(methods))


def distributions() -> list[DistributionEntry]:
    from runnel.distributions import REGISTRY

    sources = {name: _Source(path) for name, path in REGISTRY.items()}
    return [DistributionEntry(name, source.summary, source.needs, source.settings) for name, source in sources.items()]


def environments() -> list[Scheme]:
    """How environments are named."""
    from runnel import envs

    return envs.schemes()


def find(name: str, environments: Callable[[], Iterable[str]] = tuple) -> AlgorithmEntry | DistributionEntry:
    """A built-in algorithm or distribution, or the user's own at `package.module:Name`.

    `environments`: names that may be meant by one that is nothing.
    """
    from runnel.algorithms import REGISTRY

    known = {entry.name: entry for entry in (*algorithms(), *distributions())}
    if name.lower() in known:
        return known[name.lower()]
    if ":" in name:
        return _own(name)
    bases = ["Algorithm", "Distribution", *(path.rpartition(":")[2] for path in REGISTRY.values())]
    meant = source_scan.hint(name, source_scan.subclasses(name, bases))
    alike = near(name, [*known, *environments()])
    meant = meant or (did_you_mean(alike) if alike else nearest(name, known))
    raise UserError(f"there is no algorithm, distribution or environment '{name}'{meant}", page="command-line#list")


def as_json() -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "algorithms": [plain(entry) for entry in algorithms()],
        "distributions": [{**plain(entry), "flags": list(entry.flags)} for entry in distributions()],
        "environments": [scheme._asdict() for scheme in environments()],
    }


def plain(entry: AlgorithmEntry | DistributionEntry) -> dict[str, Any]:
    """An entry, for programs."""
    return {**asdict(entry), "settings": [setting._asdict() for setting in entry.settings]}


def described(entry: AlgorithmEntry | DistributionEntry) -> str:
    """An algorithm or a distribution with its settings."""
    lines = _wrapped("", f"{entry.name}: {entry.summary}")
    actions = getattr(entry, "actions", None)
    if actions:
        lines.append(f"actions: {', '.join(actions)}")
    if isinstance(entry, AlgorithmEntry):
        lines += _wrapped("", f"distributions: {', '.join(entry.distributions)}")
    of = "" if isinstance(entry, AlgorithmEntry) else "distribution."
    lines.append(f"\nsettings (--set {of}NAME=VALUE)" if entry.settings else "\nno settings")
    lines += table([(f"{row.name}={row.default}", row.type, row.doc) for row in entry.settings])
    for environment, known in getattr(entry, "tuned", {}).items():
        pairs = " ".join(f"{key}={settings.default_text(value)}" for key, value in known.items())
        lines += [f"\ntuned for {environment}", *_wrapped("  ", pairs)]
    return "\n".join(lines)


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lines with columns below each other, of which the last is wrapped to fit."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)] if rows else []
    lines = []
    for *first, last in rows:
        before = "".join(f"  {cell.ljust(width)}" for cell, width in zip(first, widths, strict=True))
        lines += _wrapped(before + "  ", last)
    return lines


def _wrapped(before: str, text: str) -> list[str]:
    """`text` after `before`, and under itself where it needs more lines."""
    columns = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    room = max(columns - len(before), 24)  # in a terminal that is too narrow, lines are too long
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"{before if not i else ' ' * len(before)}{line}".rstrip() for i, line in enumerate(lines)]


def most_of(some: Sequence[str], everything: Sequence[str]) -> str:
    """In few words which of many are among `some`."""
    missing = [name for name in everything if name not in some]
    if not missing:
        return "all"
    return f"all but {', '.join(missing)}" if len(missing) < len(some) else ", ".join(some)


def _own(path: str) -> AlgorithmEntry | DistributionEntry:
    from runnel.algorithm import Algorithm
    from runnel.config.serialization import import_object
    from runnel.planning.plan import Distribution

    cls = import_object(path)
    if not isinstance(cls, type) or not issubclass(cls, Algorithm | Distribution):
        raise UserError(f"{path} is neither an Algorithm nor a Distribution")
    summary, rows = _first_line(cls.__doc__), tuple(setting_docs.describe(cls))
    if issubclass(cls, Algorithm):
        own = [name for name in ("gradient", "apply") if getattr(cls, name) is not getattr(Algorithm, name)]
        kinds = cls.actions if isinstance(cls.actions, tuple) else (cls.actions,)
        actions = tuple(getattr(kind, "__name__", repr(kind)) for kind in kinds)  # training says which are wrong
        return AlgorithmEntry(path, summary, actions, _distributions(own), rows, {})
    return DistributionEntry(path, summary, cls.needs, rows)


class _Source:
    """The class at an import path, as its source has it."""

    def __init__(self, path: str):
        self._module, _, name = path.partition(":")
        tree, self._text = _tree(self._module)
        self.summary = _first_line(ast.get_docstring(tree))
        self._imported = {
            alias.name: node.module or ""
            for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }  # fmt: skip
        self._class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)

    @property
    def settings(self) -> tuple[Setting, ...]:
        docs = setting_docs.field_docs(self._class, self._text, self._module)
        return tuple(
            Setting(node.target.id, self._type(node.annotation), _value(node.value), docs[node.target.id])
            for node in self._class.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_class_wide(node)
        )

    @property
    def actions(self) -> tuple[str, ...]:
        return tuple(map(ast.unparse, self._class_wide("actions"))) or ACTIONS

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(map(ast.literal_eval, self._class_wide("needs")))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._class.body if isinstance(node, ast.FunctionDef))

    def _type(self, node: ast.expr) -> str:
        module = self._imported.get(node.id, "") if isinstance(node, ast.Name) else ""
        if module.startswith("runnel."):
            for line in _tree(module)[0].body:  # a type by its name: `Memory = Literal["none", "gru", "lstm"]`
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == ast.unparse(node):
                    return _type(line.value)
        return _type(node)

    def _class_wide(self, name: str) -> list[ast.expr]:
        """The parts of a tuple that the class has under this name; none where it has no such tuple."""
        for node in self._class.body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=found), value=ast.Tuple(elts=parts))
                    | ast.Assign(targets=[ast.Name(id=found)], value=ast.Tuple(elts=parts))
                ) if found == name:
                    return parts
        return []


@functools.cache
def _tree(module: str) -> tuple[ast.Module, str]:
    """The source of a module of ours, parsed and as it is. To ask where it lies would import its package."""
    text = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py").read_text(encoding="utf-8")
    return ast.parse(text), text


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
