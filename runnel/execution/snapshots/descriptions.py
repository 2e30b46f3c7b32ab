"""Descriptions of a run's policies, stored with its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runnel.config import serialization
from runnel.config.policy_config import PolicyConfig
from runnel.execution.building import BuiltRun
from runnel.execution.trust import sign
from runnel.policy.acting_parameters import acting_names


def described_policies(built: BuiltRun, config: Mapping[str, Any]) -> dict[str, PolicyConfig]:
    """By group: the configuration of the run's policies, without version and time. `config`: the run's."""
    algorithms = {group: built.algorithm.for_group(group) for group in built.graph.spec.groups}
    stored = {group: serialization.to_json(algorithm) for group, algorithm in algorithms.items()}
    acts: dict[str, Any] = {node.group: node.function for node in built.graph.of_kind("act")}
    return {
        group: PolicyConfig(
            algorithm=stored[group],
            group=group,
            spec=spec,
            acting=tuple(acting_names(algorithms[group], acts[group], spec, built.graph.states[group])),
            trained_on=str(config["environment"]["name"]),
            precision=built.graph.precision,
            code=sign({"algorithm": stored[group]}).code,
        )
        for group, spec in built.graph.spec.groups.items()
    }
