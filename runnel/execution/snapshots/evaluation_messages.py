"""Messages between the driver and evaluation workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage
from runnel.runtime.control_messages import Failed

BETWEEN = ":"
"""Separates the group from the name of an array."""


@dataclass(frozen=True)
class Evaluate(JsonMessage):
    """Asks to play the episodes with the attached parameters, named `GROUP:NAME`."""

    number: int


@dataclass(frozen=True)
class StepsPlayed(JsonMessage):
    """A heartbeat."""

    steps: int


@dataclass(frozen=True)
class EpisodesPlayed(JsonMessage):
    """The results of all episodes, in the attached arrays `return:GROUP`, `length:`, `learner:` and `metric:NAME`."""

    number: int
    notes: list[str]


def parse_report(value: Mapping[str, Any]) -> StepsPlayed | EpisodesPlayed | Failed:
    return json_messages.parse(value, StepsPlayed | EpisodesPlayed | Failed)


def parse_command(value: Mapping[str, Any]) -> Evaluate:
    return json_messages.parse(value, Evaluate)
