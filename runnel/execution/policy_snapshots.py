"""What a run's snapshots say of themselves."""

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
    algorithm = serialization.to_json(built.algorithm)
    code = sign({"algorithm": algorithm}).code
    return {
        group: PolicyConfig(
            algorithm=algorithm,
            group=group,
            spec=spec,
            acting=tuple(acting_names(built.algorithm, spec, built.graph.states[group])),
            trained_on=str(config["environment"]["name"]),
            code=code,
        )
        for group, spec in built.graph.spec.groups.items()
    }
