"""Distributions: one short file of data each. A user's own runs like these: `package.module:Name`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from runnel import deprecated
from runnel.config import settings
from runnel.config.serialization import load_class
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.planning.plan import Distribution

REGISTRY = {
    "inline": "runnel.distributions.inline:Inline",
    "fused": "runnel.distributions.fused:Fused",
    "coarse": "runnel.distributions.coarse:Coarse",
    "fine": "runnel.distributions.fine:Fine",
    "replicated": "runnel.distributions.replicated:Replicated",
    "environments": "runnel.distributions.environments:Environments",
    "central": "runnel.distributions.central:Central",
    "async": "runnel.distributions.asynchronous:Async",
    "decoupled": "runnel.distributions.decoupled:Decoupled",
}


def names() -> list[str]:
    return list(REGISTRY)


def load(name: str) -> type[Distribution]:
    """The distribution of that name, or the user's own at `package.module:Name`."""
    from runnel.planning.plan import Distribution

    return load_class(name, REGISTRY, Distribution, "distribution", page="concepts")


def default_for(environments: Literal["host", "jax"]) -> str:
    """The name of the distribution that such environments are trained under when none is named."""
    return next(name for name in REGISTRY if load(name).default_for == environments)


def of_one_process() -> list[str]:
    """The names of the distributions that never need workers."""
    return [name for name in REGISTRY if load(name).one_process]


def needs_workers(distribution: Distribution | type[Distribution] | Mapping[str, Any] | str | None) -> bool:
    """Whether a distribution may need workers. Imports no code of the user's: of that it is assumed."""
    if isinstance(distribution, Mapping):
        distribution = str(distribution.get("class"))
    if isinstance(distribution, str):
        path = REGISTRY.get(distribution, distribution)
        return path not in REGISTRY.values() or not load(path).one_process
    return distribution is not None and not distribution.one_process


def with_fields(
    distribution: Distribution | type[Distribution] | str | None, given: Mapping[str, Any]
) -> Distribution | str | None:
    """A distribution with fields that were given as keywords: `("coarse", {"actors": 4})` -> `Coarse(actors=4)`."""
    from runnel.planning.plan import Distribution

    cls: Any = load(distribution) if isinstance(distribution, str) and given else distribution
    instance = None if isinstance(cls, type) else cls
    cls = cls if isinstance(cls, type) else type(cls)
    if not (distribution is None or isinstance(distribution, str) or issubclass(cls, Distribution)):
        meant = f"; did you mean steps={distribution}?" if isinstance(distribution, int) else ""
        found = settings.shown(distribution)
        raise UserError(
            f"distribution: found {found}, expected a name such as 'coarse', or a Distribution{meant}",
            page="command-line#from-python",
        )
    if not given and (instance is not None or distribution is None):
        return instance
    name = distribution if isinstance(distribution, str) else cls.__name__.lower()
    given = deprecated.current_fields(cls, given)
    has = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
    for field in given:
        if distribution is None:
            raise UserError(
                f"{field}={given[field]!r} needs a distribution that has it{those_with(field)}",
                page="command-line#list",
            )
        if field not in has:
            raise UserError(f"distribution {name} has no '{field}'{those_with(field)}", page="command-line#list")
    made: Any = cls(**given) if instance is None else dataclasses.replace(instance, **given)
    settings.check(made)
    return made


def those_with(field: str | None) -> str:
    """`; those that have: coarse, fine`, of the distributions with a field; nothing where there are none."""
    names = [name for name in REGISTRY if field in fields(name)]
    return f"; those that have: {', '.join(names)}" if names else ""


def fields(name: str) -> list[str]:
    """The fields of a distribution, old names included."""
    cls: Any = load(name)
    return [*(field.name for field in dataclasses.fields(cls)), *deprecated.renamed_fields(cls)]
