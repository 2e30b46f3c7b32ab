"""The schemas of messages between workers: the arrays of each kind of message, by name. NumPy only.

A message is a flat list of arrays of fixed shapes and carries no schema: sender and receiver compute the same fields
from the same types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.transport import memory
from runnel.transport.stream import Field, Schema
from runnel.types import AgentSpec, PyTree, Space, space_map

Fields = dict[str, list[Field]]
"""The parts of a message in order; a part is one array or the leaves of a tree."""


ACTED = Field((3,), "<i8")
"""The versions that acted, as the first array of every value that one worker sends another: `versions.Acted`."""


@dataclass(frozen=True)
class GroupTypes:
    """The types of a group's observations, actions, extras and memory; all shapes are those of one column."""

    agents: AgentSpec
    action: Field
    extras: tuple[Field, ...]  # the leaves of what `act` returns for learning
    memory: tuple[Field, ...]  # the leaves of its memory
    real: str  # the dtype of rewards
    omits: tuple[str, ...] = ()  # fields of a trajectory that are not sent

    @property
    def observation(self) -> list[Field]:
        return leaves(
            space_map(lambda leaf: Field(tuple(leaf.shape), np.dtype(leaf.dtype).str), self.agents.observation)
        )


def unroll_fields(types: GroupTypes, steps: int, envs: int) -> Fields:
    """An unroll of T steps of one group in E environments, B columns: the output of its rollout."""
    return {name: part for name, part in all_unroll_fields(types, steps, envs).items() if name not in types.omits}


def all_unroll_fields(types: GroupTypes, steps: int, envs: int) -> Fields:
    """The same with the fields that are not sent."""
    columns = envs * types.agents.agents
    flags = [Field((steps, envs), "|b1")]
    observation = each(types.observation, steps, columns)
    return {
        "observation": observation,
        "action": each([types.action], steps, columns),
        "extras": each(types.extras, steps, columns),
        "reward": [Field((steps, columns), types.real)],
        "terminated": flags,
        "truncated": flags,
        "last_observation": observation,
        "first": flags,
        "memory": each(types.memory, columns),
        "discounted_sum": [Field((columns,), types.real)],
        "episode_return": [Field((steps, envs), "<f4")],  # where an episode ended: its return
        "episode_length": [Field((steps, envs), "<i4")],  # where an episode ended: its steps; else 0
    }


def request_fields(types: GroupTypes, envs: int, results: bool) -> Fields:
    """The observations to act on; with the `results` of the step before if the server builds the rollout, too."""
    columns = envs * types.agents.agents
    fields: Fields = {"observation": each(types.observation, columns), "first": [Field((envs,), "|b1")]}
    if results:
        fields |= {
            "reward": [Field((columns,), types.real)],
            "terminated": [Field((envs,), "|b1")],
            "truncated": [Field((envs,), "|b1")],
        }
        if "last_observation" not in types.omits:
            fields["last_observation"] = each(types.observation, columns)
    return fields


def reply_fields(types: GroupTypes, envs: int, extras: bool) -> Fields:
    """The actions; with their extras, which learning uses, if the rollout is with the environment.

    `memory` is that before the step, and written only in the reply to an unroll's first step.
    """
    columns = envs * types.agents.agents
    fields: Fields = {"action": each([types.action], columns)}
    if extras:
        more = {"extras": each(types.extras, columns), "memory": each(types.memory, columns)}
        fields |= {name: part for name, part in more.items() if name not in types.omits}
    return fields


def schema(fields: Fields) -> Schema:
    return tuple(field for part in fields.values() for field in part)


def parts(fields: Fields, arrays: Sequence[Any]) -> dict[str, list[Any]]:
    """A message's arrays by name."""
    found, at = {}, 0
    for name, part in fields.items():
        found[name] = list(arrays[at : at + len(part)])
        at += len(part)
    return found


def from_parts(fields: Fields, named: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The arrays of a message, which `parts` returns by name."""
    assert named.keys() == fields.keys()
    return [array for name in fields for array in named[name]]


def empty(fields: Sequence[Field]) -> list[np.ndarray]:
    """Memory for one message, aligned so that programs can use it without a copy."""
    needed = tuple(fields)
    return memory.arrays_at(memory.zeros(memory.arrays_bytes(needed)), needed, 0)


def each(columns: Sequence[Field], *leading: int) -> list[Field]:
    """The fields of one column with leading dimensions."""
    return [Field((*leading, *field.shape), field.dtype) for field in columns]


# Trees of arrays as environments use them: dicts and tuples. JAX has these functions too, but is not imported here.


def leaves(tree: PyTree) -> list[Any]:
    """In the order in which JAX returns them."""
    if isinstance(tree, Mapping):
        return [leaf for name in sorted(tree) for leaf in leaves(tree[name])]
    if isinstance(tree, tuple) and not isinstance(tree, Field):
        return [leaf for part in tree for leaf in leaves(part)]
    return [tree]


def as_observation(space: Space, arrays: Sequence[Any]) -> PyTree:
    """Leaves as the tree that values of `space` are."""
    rest = iter(arrays)
    return space_map(lambda _: next(rest), space)
