"""Parameter versions behind each sample, and their staleness at learning time. NumPy only.

A version counts the updates of a group's state. An iteration counts passes of the training loop, each of which makes no
update, one or several. Unrolls carry the version that they were begun with, and values made of unrolls carry the
versions of those, all the way to the learner, which alone can say how old they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.transport.parameter_store import StoreReader


class ParameterStamp(NamedTuple):
    """The parameters that an unroll is begun with."""

    iteration: int  # of their learner; the lowest where there are several
    versions: Mapping[str, int]  # by group


NO_STAMP = ParameterStamp(0, {})


def stamp_now(stores: Mapping[str, StoreReader], learnt: Mapping[str, int]) -> ParameterStamp:
    """The oldest parameters that act in an unroll that begins now. `learnt`: the versions of what is learnt here."""
    iteration = min((store.iteration() for store in stores.values()), default=0)
    versions = {group: max(0, store.version()) for group, store in stores.items()}
    return ParameterStamp(max(0, iteration), {**learnt, **versions})


Leads = Mapping[str, int | None]
"""By group: how many iterations an unroll may be ahead of what the learner has published; None: any number."""


def required(unroll: int, lead: int | None) -> int:
    """The oldest iteration whose parameters may act in an unroll."""
    return 0 if lead is None else max(0, unroll - lead)


def in_time(stores: Mapping[str, StoreReader], unroll: int, leads: Leads) -> bool:
    """Whether the learners have published what an unroll waits for."""
    return all(store.iteration() >= required(unroll, leads[group]) for group, store in stores.items())


class Acted(NamedTuple):
    """The versions that acted in the unrolls of one group that a value was made from."""

    oldest: int = 0
    total: int = 0  # of the versions
    unrolls: int = 0

    @classmethod
    def of(cls, versions: Iterable[int]) -> Acted:
        found = [int(version) for version in versions]
        return cls(min(found, default=0), sum(found), len(found))


def together(parts: Iterable[Acted]) -> Acted:
    """Of everything that a value was made from."""
    known = [part for part in parts if part.unrolls]
    oldest = min((part.oldest for part in known), default=0)
    return Acted(oldest, sum(part.total for part in known), sum(part.unrolls for part in known))


class Staleness:
    """How many updates behind what was learnt from was: its mean over unrolls, and the most."""

    def __init__(self) -> None:
        self.total, self.count, self.most = 0, 0, 0

    def add(self, updates: int, acted: Acted) -> None:
        """An update that follows `updates` others learns from these unrolls."""
        self.total += updates * acted.unrolls - acted.total
        self.count += acted.unrolls
        if acted.unrolls:
            self.most = max(self.most, updates - acted.oldest)

    def json(self) -> list[int]:
        return [self.total, self.count, self.most]
