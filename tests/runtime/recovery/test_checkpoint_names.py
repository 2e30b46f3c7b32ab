"""The names of the arrays in checkpoints, written down: a change of format is a change of this file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import agents_of, random_saved, topology_of
from toys import Corridor, Drift, Reinforce, Tag

from runnel.execution.building import build
from runnel.recording.checkpoint import Checkpoints
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint

LEARNING = {
    "iteration", "seed", "states.agent.*", "updates.agent", "window.cursor", "window.filled", "window.lengths",
    "window.returns.agent",
}  # fmt: skip
COUNTED = {"block.*.discounted.agent", "block.*.length", "block.*.reward.agent"}
HOST = {"block.*.host.actions/agent", "block.*.host.cut", "block.*.host.lengths", "block.*.host.numbers"}
JAX = {"block.*.environment.*", "block.*.first", "block.*.observation.agent.*"}
REPLAY = {"credit.replay", "inserted.replay", "replays.replay.*"}
GROUPS = {
    f"{name}{group}"
    for name in ("updates.", "window.returns.", "block.*.discounted.", "block.*.reward.")
    for group in ("hunter", "runners")
} | {
    f"{name}{group}.*" for name in ("states.", "block.*.observation.") for group in ("hunter", "runners")
}  # fmt: skip

ON_DISK = {
    "['carry'].actors.discounted_sum['agent']", "['carry'].iteration", "['carry'].running.length",
    "['carry'].running.reward['agent']", "['carry'].seed", "['carry'].states['agent']*",
    "['carry'].updates['agent']", "['carry'].window.cursor", "['carry'].window.filled", "['carry'].window.lengths",
    "['carry'].window.returns['agent']",
}  # fmt: skip
HOST_ON_DISK = {f"['host']['{name}']" for name in ("actions/agent", "cut", "lengths", "numbers")}
JAX_ON_DISK = {
    "['carry'].environments.first", "['carry'].environments.observation['agent']*", "['carry'].environments.state*",
}  # fmt: skip
GROUPS_ON_DISK = {
    f"['carry'].{name}['{group}']{rest}"
    for group in ("hunter", "runners")
    for name, rest in (
        ("actors.discounted_sum", ""), ("running.reward", ""), ("states", "*"), ("updates", ""),
        ("window.returns", ""), ("environments.observation", "*"),
    )
}  # fmt: skip

PLANS: dict[str, tuple[tuple[Any, Any], dict[str, Any], set[str], set[str]]] = {
    "host environments": (
        (Reinforce(), "CartPole-v1"),
        {"distribution": "coarse", "actors": 2},
        LEARNING | COUNTED | HOST,
        ON_DISK | HOST_ON_DISK,
    ),
    "JAX environments": (
        (Reinforce(), Corridor()),
        {"distribution": "coarse", "actors": 2},
        LEARNING | COUNTED | JAX,
        ON_DISK | JAX_ON_DISK,
    ),
    "JAX environments, stepped from the host": (
        (Reinforce(), Corridor()),
        {"distribution": "fine", "actors": 2},
        LEARNING | COUNTED | JAX,
        ON_DISK | JAX_ON_DISK,
    ),
    "memory": (
        ("ppo", "CartPole-v1"),
        {"distribution": "decoupled", "actors": 2, "settings": {"memory": "gru"}},
        LEARNING | COUNTED | HOST | {"block.*.memory.agent.*"},
        ON_DISK | HOST_ON_DISK | {"['carry'].actors.memory['agent']*"},
    ),
    "replay": (
        ("dqn", "CartPole-v1"),
        {"distribution": "async", "actors": 2, "settings": {"capacity": 256, "min_size": 64, "batch": 32}},
        LEARNING | COUNTED | HOST | REPLAY,
        ON_DISK | HOST_ON_DISK,
    ),
    "groups": (
        (Drift(), Tag()),
        {"distribution": "coarse", "actors": 2},
        {name for name in LEARNING | COUNTED | JAX if "agent" not in name} | GROUPS,
        {name for name in ON_DISK | JAX_ON_DISK if "agent" not in name} | GROUPS_ON_DISK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
def test_the_names_of_arrays_that_workers_get_and_of_those_on_disk(plan: str, tmp_path: Path) -> None:
    (algorithm, environment), options, parts, on_disk = PLANS[plan]
    built = build(algorithm, environment, envs=8, **options)
    saved = random_saved(built)
    topology = topology_of(built)
    found = worker_checkpoint.split(saved, topology, agents_of(built))
    assert {re.sub(r"\.\d+\.", ".*.", re.sub(r"\.\d+$", ".*", name)) for name in found} == parts
    assert len(topology.blocks) > 1
    for block in topology.blocks:
        own = {name for name in found if names.block_number(name) == block.number}
        assert own == {names.in_block(name, block.number) for name in found if names.block_number(name) == 0}
    trees = r"(\.(states|memory|observation)\['\w+'\]|environments\.state).*"
    checkpoints = Checkpoints(tmp_path)
    path = checkpoints.save(1, saved, {})
    assert {re.sub(trees, r"\1*", name) for name in checkpoints.read(path)} == on_disk
    assert (path / "replay").exists() == (plan == "replay")
    if plan == "replay":
        fields = {re.match(r"\['replay'\]\.\w+", name)[0] for name in checkpoints.read(path, "replay")}  # type: ignore[index]
        assert fields == {f"['replay'].{field}" for field in ("credit", "inserted", "items")}


def test_names_are_parsed_as_they_are_made() -> None:
    field = names.block(12, names.host("actions/agent.0"))
    assert names.block_number(field) == 12
    assert names.host_name(field) == "actions/agent.0"
    assert names.host_name(names.block(3, names.LENGTH)) is None
    assert names.block_number(names.state("block.3")) is None
    assert names.replay_node(names.leaf(names.replay("replay.hunter"), 11)) == "replay.hunter"
    assert names.replay_node(names.inserted("replay")) is None
    large = names.leaf(names.replay("replay"), 12)
    assert names.part_of(names.part(large, 2048)) == (large, 2048)
    assert names.part_of(large) is None
    assert names.counts_updates(names.updates("agent"))
    assert not names.counts_updates(names.state("updates."))


def test_the_names_of_a_journal_become_those_of_a_block() -> None:
    assert names.in_block(names.journal_field(names.reward("agent")), 7) == "block.7.reward.agent"
    assert names.in_block(names.UNROLLS, 7) == "unrolls"
    assert names.in_block(names.block(10, names.LENGTH), 7) == "block.10.length", "it is no journal's"
