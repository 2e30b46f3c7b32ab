"""Distributions: one short file of data each. A user's own runs like these: `package.module:Name`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.portable import load_class

if TYPE_CHECKING:
    from runnel.plan import Distribution

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
    from runnel.plan import Distribution

    return load_class(name, REGISTRY, Distribution, "distribution")
