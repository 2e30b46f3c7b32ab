"""The reference pages, as the code has them: for the documentation site, and for `runnel help reference-algorithms`.

Where a page says `<!-- generated: algorithms -->`, the code's own lists take its place: `algorithms`, `distributions`,
`environments` or `python`. On the site, mkdocstrings replaces `::: runnel.train` by what a docstring says; a terminal
shows the signature and the docstring. Algorithms and distributions are read from their source, so that no JAX is
imported.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from runnel.cli import catalog, environment_names
from runnel.config import setting_docs, settings
from runnel.config.setting_descriptions import ENVIRONMENTS
from runnel.config.setting_docs import Setting
from runnel.envs import FAMILIES, Family

MARK: Final = re.compile(r"^<!-- generated: (\w+) -->$", re.M)
DIRECTIVE: Final = re.compile(r"^::: ([\w.]+)\n(?: {4,}.*\n?)*", re.M)

MOST_NAMES: Final = 60
"""Environments of a family that its section names. `runnel list` names all."""

PACKAGE: Final = Path(__file__).resolve().parents[1]


def for_site(markdown: str, pages: Iterable[Path]) -> str:
    """A page of the site. `pages`: those of the documentation, which may describe public names themselves."""
    return MARK.sub(lambda mark: _generated(mark[1], pages), markdown)


def for_terminal(markdown: str, pages: Iterable[Path]) -> str:
    """A page without anything that another program would have to fill in."""
    return DIRECTIVE.sub(lambda found: definition_text(found[1]), for_site(markdown, pages))


def _generated(name: str, pages: Iterable[Path]) -> str:
    return python(pages) if name == "python" else GENERATED[name]()


def algorithms() -> str:
    """A section for each algorithm: what it is, what it acts in, where it runs, and its settings."""
    from runnel.algorithms import ALIASES

    every = [entry.name for entry in catalog.distributions()]
    sections = []
    for entry in catalog.algorithms():
        if entry.name in ALIASES:
            sections.append(f"## {entry.name}\n\nAnother name of [`{ALIASES[entry.name]}`](#{ALIASES[entry.name]}).")
            continue
        known = [
            f"| `{name}` | {_code(f'{key}={settings.default_text(value)}' for key, value in tuned.items())} |"
            for name, tuned in entry.tuned.items()
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
    sections = []
    for entry in catalog.distributions():
        needs = f"The loop needs {_code(entry.needs)}." if entry.needs else ""
        flags = [f"--{name}" for name in entry.flags]
        said = f"Flags: {_code(flags)}." if flags else ""
        parts = [f"## {entry.name}", entry.summary, " ".join(filter(None, (needs, said))), _settings(entry.settings)]
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections)


def environments() -> str:
    """A section for each family: its names, the extra that installs it, and the settings of its adapter."""
    of_all = _settings(environment_names.OF_ALL.values(), "env.")
    gymnasium = [
        "## Gymnasium", "a Gymnasium id: CartPole-v1, HalfCheetah-v5", "Every keyword of the environment is a setting.",
        family_names(environment_names.GYMNASIUM, "gymnasium"),
    ]  # fmt: skip
    sections = [f"## Settings of all environments\n\n{of_all}", "\n\n".join(gymnasium)]
    for family in FAMILIES:
        brings = f"Extra: `{family.extra}`." if family.extra else "Comes with Runnel."
        named = family_names(family, family.prefix)
        parts = [f"## {family.prefix}NAME", family.summary, brings, adapter_settings(family.adapter), named]
        sections.append("\n\n".join(filter(None, parts)))
    return "\n\n".join(sections)


def family_names(family: Family, listed_by: str) -> str:
    """The environments of a family, as far as they can be read here, and how to list all of them."""
    command = f"`runnel list {listed_by}`"
    if not family.installed:
        return f"{command} names its environments once the extra is installed."
    found: list[str] = []
    if family.package not in environment_names.SLOW_TO_NAME:
        with contextlib.suppress(Exception):  # a library may raise anything while it is imported
            found = environment_names.names(family)
    if not found:
        return f"{command} names its environments."
    rest = len(found) - MOST_NAMES
    more = f", and {rest} more: {command}." if rest > 0 else f" ({command})."
    return f"Environments: {_code(found[:MOST_NAMES])}{more}"


def python(pages: Iterable[Path]) -> str:
    """Every public name: in a table, and documented here unless another page does so."""
    import runnel

    documented = {
        name: page.name
        for page in pages
        for name in re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.M)
    }
    rows, sections = [], []
    for name, module in sorted(runnel._HOME.items(), key=lambda item: item[0].lower()):
        path = f"runnel.{module}.{name}"
        doc = definition(path)[1].partition("\n")[0]
        rows.append(f"| [`runnel.{name}`]({documented.get(path, '')}#{path}) | {_cell(doc)} |")
        if path not in documented:
            sections.append(f"::: {path}\n    options:\n      heading_level: 3")
    return "\n".join(["| name | |", "|---|---|", *rows, "", "## In detail", "", "\n\n".join(sections), ""])


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "algorithms": algorithms, "distributions": distributions, "environments": environments,
}  # fmt: skip
"""What a page can ask for, besides `python`."""


# Docstrings, from the source


def definition_text(path: str) -> str:
    """A function or class at an import path, for a terminal: signature, docstring and public methods."""
    found, doc = definition(path)
    name = path.rpartition(".")[2]
    lines = [f"### {name}", "", "```python", *_signature(found, name), "```", "", doc, ""]
    for method in found.body if isinstance(found, ast.ClassDef) else ():
        if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and ast.get_docstring(method):
            lines += ["```python", *_signature(method, method.name), "```", "", _docstring(method), ""]
    return "\n".join(lines) + "\n"


def definition(path: str) -> tuple[ast.stmt | None, str]:
    """The statement that defines the name at an import path, and its docstring.

    Packages that only import the name from elsewhere are followed.
    """
    module, _, name = path.rpartition(".")
    place = PACKAGE.joinpath(*module.split(".")[1:])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ClassDef(name=found) | ast.FunctionDef(name=found) if found == name:
                return node, _docstring(node)
            case ast.Assign(targets=[ast.Name(id=found)]) | ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                below = after.value if isinstance(after, ast.Expr) else None
                return node, below.value if isinstance(below, ast.Constant) and isinstance(below.value, str) else ""
            case ast.ImportFrom(module=str(origin)) if name in {alias.name for alias in node.names}:
                return definition(f"{origin}.{name}")
    return None, ""


def _docstring(node: ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _signature(node: ast.stmt | None, name: str) -> Iterator[str]:
    """In lines that fit a terminal."""
    match node:
        case ast.FunctionDef():
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            given = [part for part in _parts(ast.unparse(node.args)) if part not in ("self", "cls")]
            short = f"{name}({', '.join(given)}){returns}"
            yield from [short] if len(short) < 90 else [f"{name}(", *(f"    {part}," for part in given), f"){returns}"]
        case ast.ClassDef():
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and _is_field(each)]
            yield f"class {name}:"
            yield from (f"    {ast.unparse(field)}" for field in fields)
        case _:
            yield name


def _parts(text: str) -> list[str]:
    """Parameters, of which a type or a default may have commas of its own."""
    found, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "[({") - (sign in "])}")
        if sign == "," and not depth:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()] if text else []


def _is_field(node: ast.AnnAssign) -> bool:
    return "ClassVar" not in ast.unparse(node.annotation) and not ast.unparse(node.target).startswith("_")


# Tables


def _settings(rows: Iterable[Setting], prefix: str = "") -> str:
    lines = [
        f"| `{prefix}{row.name}` | {_code([row.type])} | {_code([row.default])} | {_cell(row.doc)} |" for row in rows
    ]
    return "\n".join(["| setting | type | default | |", "|---|---|---|---|", *lines]) if lines else "No settings."


def adapter_settings(adapter: str) -> str:
    """The settings that an adapter names itself. It is read and not imported, as its library may not be installed."""
    module, _, name = adapter.partition(":")
    text = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    found: Any = next(n for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == name)
    if isinstance(found, ast.ClassDef):
        found = next(n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__")
    given = found.args
    named = [*given.posonlyargs, *given.args]
    defaults = [*zip(named[len(named) - len(given.defaults) :], given.defaults, strict=True)]
    defaults += [pair for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True) if pair[1] is not None]
    rows = [_row(arg.arg, arg.annotation, value, ENVIRONMENTS.get(arg.arg, "")) for arg, value in defaults]
    kept = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name.endswith("Settings")]
    for cls in kept:  # of an adapter whose settings are a dataclass
        docs = setting_docs.field_docs(cls, text)
        rows += [
            _row(field.target.id, field.annotation, field.value, docs[field.target.id])
            for field in cls.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value is not None
        ]
    more = "All other keywords of the environment are settings, too." if given.kwarg and not kept else ""
    return "\n\n".join(filter(None, (_settings(rows, "env.") if rows else "", more)))


def _row(name: str, kind: ast.expr | None, value: ast.expr | None, doc: str) -> Setting:
    return Setting(name, ast.unparse(kind) if kind else "", _default(value), doc)


def _default(node: ast.expr | None) -> str:
    if node is None:
        return "required"
    try:
        return settings.default_text(ast.literal_eval(node))
    except ValueError:
        return ast.unparse(node)


def _code(words: Iterable[str]) -> str:
    """Words as code. A bar would end the cell of a table: `gru | lstm` becomes two words."""
    return ", ".join(" or ".join(f"`{part}`" for part in word.split(" | ")) for word in words if word)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
