"""The environments of each family by name, and the settings of one.

Names of libraries in JAX are read from their source, which nothing imports: `runnel list` and the completion of the
shell answer at once. The settings of an environment need its library.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import inspect
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel.config import serialization, setting_docs
from runnel.config.setting_descriptions import ENVIRONMENTS
from runnel.config.setting_docs import Setting
from runnel.config.settings import default_text
from runnel.envs import FAMILIES, Family, frame_stack, lineups, seats
from runnel.errors import NotInstalled, UserError, nearest
from runnel.types import EnvSpec

GYMNASIUM: Final = Family("", "runnel.envs.gymnasium:GymnasiumEnvironment", "gymnasium", "", "a Gymnasium id")
"""The family of names without a prefix."""

OF_ALL: Final = {
    name: Setting(name, kind, default, ENVIRONMENTS[name])
    for name, kind, default in (
        (frame_stack.SETTING, "int", "1"), (seats.SETTING, "int", "all"), (lineups.SETTING, "tuple", "none"),
    )
}  # fmt: skip
"""Settings that Runnel itself adds to every environment that has no such setting."""


SLOW_TO_NAME: Final = ("envpool",)
"""Packages that take a second to import, and are asked for names only by those who want those."""


class InSource(NamedTuple):
    """A name of a module that is assigned a list, a dict or a Literal of texts."""

    package: str
    file: str
    name: str
    without: tuple[str, ...] = ()  # what the library leaves out of its own list


IN_SOURCE: Final[Mapping[str, tuple[InSource, ...]]] = {
    "gymnax:": (InSource("gymnax", "registration.py", "registered_envs"),),
    "brax:": (InSource("brax", "envs/__init__.py", "_envs"),),
    "jaxmarl:": (
        InSource("runnel", "envs/jaxmarl_catalog.py", "ENVIRONMENTS"),
        InSource("jaxmarl", "environments/smax/smax_env.py", "MAP_NAME_TO_SCENARIO"),
    ),
    "pgx:": (InSource("pgx", "core.py", "EnvId", without=("bridge_bidding",)),),
    "matrix:": (InSource("runnel", "envs/matrix_games.py", "GAMES"),),
    "hide:": (InSource("hide_and_seek", "environment.py", "GAMES"),),
}


def family_of(name: str) -> Family | None:
    """The family that a name, or a prefix of names, belongs to; `gymnasium` is the one without a prefix."""
    if name.rstrip(":") == "gymnasium":
        return GYMNASIUM
    return next((each for each in FAMILIES if name.startswith(each.prefix) or name == each.prefix.rstrip(":/")), None)


def names(family: Family) -> list[str]:
    """The environments of a family whose package is installed, as they are given to `train`."""
    if not family.installed:
        return []
    if family.prefix in IN_SOURCE:
        found: Iterable[str] = (name for place in IN_SOURCE[family.prefix] for name in _texts_of(place))
    else:
        found = _BY_IMPORT[family.package]()
    return sorted({f"{family.prefix}{name}" for name in found})


def listed(family: Family) -> list[str]:
    """The same, for who asks for them: an installed family has environments."""
    found = names(family)
    if family.installed and not found:
        raise UserError(
            f"the names of {family.prefix or 'Gymnasium'} could not be read: found none where this version of "
            f"'{family.package}' should have them. Its own pages name them; `runnel train` takes them as they are"
        )
    return found


def _texts_of(place: InSource) -> list[str]:
    """The texts that a name is assigned in a file of an installed package; none where the file has become another."""
    spec = importlib.util.find_spec(place.package)
    roots = (spec.submodule_search_locations or []) if spec else []
    file = next((path for path in (Path(root, place.file) for root in roots) if path.is_file()), None)
    return (
        [] if file is None else [text for text in texts_in(file.read_bytes(), place.name) if text not in place.without]
    )


def texts_in(source: bytes | str, name: str) -> list[str]:
    """The texts that a module assigns to a name, itself or by way of other names: `list(_registry)`."""
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.expr):
                assigned.setdefault(target.id, value)
    return _texts(name, assigned)


def _texts(name: str, assigned: dict[str, ast.expr]) -> list[str]:
    value: Any = assigned.pop(name, None)  # taken out, so that names in a circle come to an end
    if value is None:
        return []
    if isinstance(value, ast.DictComp):  # its keys are what it goes through
        value = value.generators[0].iter
    parts = value.keys if isinstance(value, ast.Dict) else [*ast.walk(value)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return texts or [text for part in parts if isinstance(part, ast.Name) for text in _texts(part.id, assigned)]


def _of_gymnasium() -> Iterable[str]:
    import gymnasium

    others = (*(family.prefix for family in FAMILIES), "GymV2")
    atari = {name for name, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("ale_py")}
    return [name for name in gymnasium.registry.keys() - atari if ":" not in name and not name.startswith(others)]


def _of_ale() -> Iterable[str]:
    import gymnasium

    importlib.import_module("ale_py")  # registers its games
    return [name.removeprefix("ALE/") for name in gymnasium.registry if name.startswith("ALE/")]


def _of_openspiel() -> Iterable[str]:
    import pyspiel

    dynamics = pyspiel.GameType.Dynamics.MEAN_FIELD
    return [kind.short_name for kind in pyspiel.registered_games() if kind.dynamics != dynamics]


def _of_pettingzoo() -> Iterable[str]:
    return _adapter("pettingzoo").known_names()


def _of_envpool() -> Iterable[str]:
    return _adapter("envpool").known_names()


_BY_IMPORT: Final[Mapping[str, Callable[[], Iterable[str]]]] = {
    "gymnasium": _of_gymnasium,
    "ale_py": _of_ale,
    "pyspiel": _of_openspiel,
    "pettingzoo": _of_pettingzoo,
    "envpool": _of_envpool,
}


# Settings


def settings(name: str, spec: EnvSpec | None = None) -> list[Setting]:
    """The settings of an environment, `--set env.NAME=VALUE`: its library's, its adapter's and Runnel's own.

    With its `spec`, without those of Runnel's that cannot apply to it.
    """
    family = family_of(name) or (GYMNASIUM if ":" not in name else None)
    if family is None:
        found = of_callable(serialization.import_object(name))
    else:
        if not family.installed:
            raise NotInstalled(name, f"'{family.package}'", family.extra)
        known = listed(family)
        if name not in known:
            raise UserError(f"there is no environment '{name}'{nearest(name, known)}", page="command-line#list")
        adapter = serialization.import_object(family.adapter)
        own = [] if family is GYMNASIUM else of_callable(adapter, keyword_only=True)
        library = _OF_LIBRARY.get(family.package, lambda _: [])(name.removeprefix(family.prefix))
        found = [*library, *own]
    rows = {row.name: row._replace(doc=row.doc or (ENVIRONMENTS.get(row.name, "") if family else "")) for row in found}
    skipped = {family.stacks and frame_stack.SETTING} if family else set()
    if spec is not None:
        skipped |= _not_for(spec)
    return [*rows.values(), *(row for key, row in OF_ALL.items() if key not in rows and key not in skipped)]


def _not_for(spec: EnvSpec) -> set[str]:
    """Runnel's settings that an environment refuses: seats are of a symmetric game, line-ups of several groups."""
    several = len(spec.groups) > 1
    symmetric = not several and next(iter(spec.groups.values())).agents > 1
    return {name for name, right in ((seats.SETTING, symmetric), (lineups.SETTING, several)) if not right}


def of_callable(makes: Any, keyword_only: bool = False) -> list[Setting]:
    """The parameters of a callable as settings; not how it is rendered, which is not the user's to say."""
    try:
        parameters = [*inspect.signature(makes).parameters.values()]
    except (TypeError, ValueError):
        return []
    if isinstance(makes, type) and any(p.kind is p.VAR_KEYWORD for p in parameters):  # handed on to a class below it
        handed = [p for base in makes.__mro__[1:-1] for p in inspect.signature(base).parameters.values()]
        parameters += [p for p in handed if p.default is not p.empty and p.name not in {q.name for q in parameters}]
    kinds = (inspect.Parameter.KEYWORD_ONLY, *(() if keyword_only else (inspect.Parameter.POSITIONAL_OR_KEYWORD,)))
    taken = [p for p in parameters if p.kind in kinds and p.name not in ("render_mode", "self")]
    said = inspect.getdoc(makes) or ""
    return [Setting(p.name, _type(p), _default(p.default, p.empty), documented(said, p.name)) for p in taken]


def documented(docstring: str, name: str) -> str:
    """What a docstring says of a parameter: in a row of a table, or after its name in a list; the first sentence."""
    quoted = rf"[`*]*{re.escape(name)}[`*]*"
    row = re.search(rf"^ *\|\s*{quoted}\s*\|(.*)\|\s*$", docstring, re.M)
    on = r"(?:\n *(?!\w+(?: \(\w+\))?:)[a-z(].*)*"  # lines that go on, and do not begin with the next name
    listed = re.search(rf"^ *[-*]? *{quoted}(?: ?\([^)]*\)|=[^:\n]*)?: +(\S.*{on})$", docstring, re.M)
    said = row[1].split("|")[-1] if row else listed[1] if listed else ""
    plain = re.sub(r"<[^>]*>|\(see[^)]*\)|\[([^\]]*)\]\([^)]*\)", r"\1", said).replace("`", "")
    return textwrap.shorten(re.split(r"(?<=[.;]) ", plain, maxsplit=1)[0], 120, placeholder=" ...").rstrip(".;")


def _type(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is not parameter.empty:
        return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    missing = parameter.default is parameter.empty or parameter.default is None
    return "" if missing else type(parameter.default).__name__


def _default(value: Any, empty: Any) -> str:
    if value is empty:
        return "required"
    return default_text(value).replace("\n", " ")[:60]


def _plain(values: Mapping[str, Any]) -> list[Setting]:
    return [
        Setting(key, type(value).__name__, _default(value, inspect.Parameter.empty), "")
        for key, value in values.items()
    ]


def _gymnasium_settings(name: str) -> list[Setting]:
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    spec: Any = gymnasium.spec(name)
    try:
        rows = of_callable(spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point))
    except Exception:  # what it needs besides Gymnasium is not installed, which Gymnasium says in several ways
        rows = []
    limit = "none" if spec.max_episode_steps is None else str(spec.max_episode_steps)
    by_name = {row.name: row for row in [*rows, *_plain(spec.kwargs)]}
    return [*by_name.values(), Setting("max_episode_steps", "int", limit, "steps after which an episode is cut")]


def _ale_settings(_: str) -> list[Setting]:
    return setting_docs.describe(serialization.import_object("runnel.envs.ale:AleSettings"))


def _gymnax_settings(name: str) -> list[Setting]:
    import gymnax

    environment, params = gymnax.make(name)
    fields: Any = dataclasses.fields(params)  # type: ignore[arg-type]
    return [*of_callable(type(environment)), *_plain({field.name: getattr(params, field.name) for field in fields})]


def _brax_settings(name: str) -> list[Setting]:
    with contextlib.redirect_stdout(io.StringIO()):  # MJX prints what it could not import
        from brax import envs
    return of_callable(envs._envs[name])


def _jaxmarl_settings(name: str) -> list[Setting]:
    return [row for cls in reversed(_adapter("jaxmarl_catalog").classes_of(name)) for row in of_callable(cls)]


def _pgx_settings(name: str) -> list[Setting]:
    import pgx

    return of_callable(type(pgx.make(name)))  # type: ignore[arg-type]


def _openspiel_settings(name: str) -> list[Setting]:
    import pyspiel

    known = {kind.short_name: kind for kind in pyspiel.registered_games()}
    return _plain(dict(known[name].parameter_specification))


def _matrix_settings(_: str) -> list[Setting]:
    rows = of_callable(serialization.import_object("runnel.envs.matrix_games:MatrixGame"))
    return [row for row in rows if row.name in ("groups", "rounds")]


_OF_LIBRARY: Final[Mapping[str, Callable[[str], list[Setting]]]] = {
    "gymnasium": _gymnasium_settings,
    "ale_py": _ale_settings,
    "gymnax": _gymnax_settings,
    "brax": _brax_settings,
    "jaxmarl": _jaxmarl_settings,
    "pgx": _pgx_settings,
    "": _matrix_settings,
    "pyspiel": _openspiel_settings,
    "pettingzoo": lambda name: of_callable(_adapter("pettingzoo").maker_of(name)),
    "envpool": lambda name: _plain(_adapter("envpool").defaults_of(name)),
}


def _adapter(name: str) -> Any:
    return importlib.import_module(f"runnel.envs.{name}")
