"""Writes the reference pages while the documentation is built, from the code itself: so they are never stale.

MkDocs calls `on_page_markdown` for every page. Where a page says `<!-- generated: algorithms -->`, what the code has
takes its place: `algorithms`, `distributions`, `environments` or `python`.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.M)

if str(ROOT) not in sys.path:  # MkDocs loads this file alone
    sys.path.insert(0, str(ROOT))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page with what the code has in the places that ask for it."""
    return MARK.sub(lambda mark: GENERATED[mark[1]](), markdown)


def algorithms() -> str:
    """A section for each algorithm: what it is, what it acts in, where it runs, and its settings."""
    from runnel.algorithms import ALIASES
    from runnel.cli import catalog

    every = [entry.name for entry in catalog.distributions()]
    sections = []
    for entry in catalog.algorithms():
        if entry.name in ALIASES:
            sections.append(f"## {entry.name}\n\nAnother name of [`{ALIASES[entry.name]}`](#{ALIASES[entry.name]}).")
            continue
        known = [
            f"| `{name}` | {_code(f'{key}={_text(value)}' for key, value in settings.items())} |"
            for name, settings in entry.tuned.items()
        ]
        parts = [
            f"## {entry.name}", entry.summary,
            f"Actions: {_code(entry.actions)}. Distributions: {catalog.most_of(entry.distributions, every)}.",
            _settings(entry.settings),
            *(["Tuned for:\n\n| environment | settings |\n|---|---|\n" + "\n".join(known)] if known else []),
        ]  # fmt: skip
        sections.append("\n\n".join(parts))
    return "\n\n".join(sections)


def distributions() -> str:
    """A section for each distribution."""
    from runnel.cli import catalog

    sections = []
    for entry in catalog.distributions():
        needs = f"The loop needs {_code(entry.needs)}." if entry.needs else ""
        flags = [f"--{name}" for name in entry.flags]
        said = f"Flags: {_code(flags)}." if flags else ""
        parts = [f"## {entry.name}", entry.summary, " ".join(filter(None, (needs, said))), _settings(entry.settings)]
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections)


def environments() -> str:
    """A section for each family: how its environments are named, what brings it, and the settings of its adapter."""
    from runnel.envs import FAMILIES

    sections = [
        "## Gymnasium\n\na Gymnasium id: CartPole-v1, HalfCheetah-v5\n\nEvery keyword of the environment is a setting."
    ]
    for family in FAMILIES:
        brings = f"Extra: `{family.extra}`." if family.extra else "Comes with Runnel."
        parts = [f"## {family.prefix}NAME", family.summary, brings, _adapter_settings(family.adapter)]
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections)


def python() -> str:
    """Every public name: in a table, and documented here unless another page does so."""
    import runnel

    documented = {
        name: page.name
        for page in sorted((ROOT / "docs").glob("*.md"))
        for name in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.M)
    }
    rows, sections = [], []
    for name, module in sorted(runnel._HOME.items(), key=lambda item: item[0].lower()):
        path = f"runnel.{module}.{name}"
        doc = (getattr(importlib.import_module(f"runnel.{module}"), name).__doc__ or "").strip().partition("\n")[0]
        rows.append(f"| [`runnel.{name}`]({documented.get(path, '')}#{path}) | {_cell(doc)} |")
        if path not in documented:
            sections.append(f"::: {path}\n    options:\n      heading_level: 3")
    return "\n".join(["| name | |", "|---|---|", *rows, "", "## In detail", "", "\n\n".join(sections)])


GENERATED: dict[str, Callable[[], str]] = {
    "algorithms": algorithms, "distributions": distributions, "environments": environments, "python": python,
}  # fmt: skip
"""What a page can ask for."""


def _settings(settings: Sequence[Any]) -> str:
    if not settings:
        return "No settings."
    rows = [f"| `{row.name}` | {_code([row.type])} | {_code([row.default])} | {_cell(row.doc)} |" for row in settings]
    return "\n".join(["| setting | type | default | |", "|---|---|---|---|", *rows])


def _adapter_settings(adapter: str) -> str:
    """The settings that an adapter names itself. It is read and not imported, as its library may not be installed."""
    module, _, name = adapter.partition(":")
    tree = ast.parse(ROOT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name]
    if isinstance(found, ast.ClassDef):
        found = next(n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    given = found.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*zip(named[len(named) - len(given.defaults) :], given.defaults, strict=True)]
    defaults += [pair for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True) if pair[1] is not None]
    found_at = [(arg.arg, arg.annotation, value) for arg, value in defaults]
    kept = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("Settings")]
    found_at += [  # of an adapter whose settings are a dataclass
        (field.target.id, field.annotation, field.value)
        for cls in kept for field in cls.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None
    ]  # fmt: skip
    rows = [
        f"| `env.{key}` | {_code([ast.unparse(kind)]) if kind else ''} | {_code([_default(value)])} |"
        for key, kind, value in found_at
    ]
    more = "All other keywords of the environment are settings, too." if given.kwarg and not kept else ""
    table = "\n".join(["| setting | type | default |", "|---|---|---|", *rows]) if rows else ""
    return "\n\n".join(filter(None, (table, more)))


def _default(node: ast.expr) -> str:
    try:
        return _text(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)


def _text(value: Any) -> str:
    from runnel.config import settings

    return settings.default_text(value)


def _code(words: Iterable[str]) -> str:
    """Words as code. A bar would end the cell of a table: `gru | lstm` becomes two words."""
    return ", ".join(" or ".join(f"`{part}`" for part in word.split(" | ")) for word in words)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
