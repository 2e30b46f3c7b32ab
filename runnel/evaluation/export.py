"""Policies for programs without Runnel: `runnel export RUN_DIR@TAG --format stablehlo|onnx`.

A new directory holds the model and `model.json`, which names its inputs and outputs:

    model.stablehlo or model.onnx    (observation..., memory...) -> (action, next memory...), any batch size, greedy
    model.json                       names, shapes and types in order; the memory to begin an episode with
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import jax
import numpy as np

from runnel import __version__
from runnel.algorithm import Algorithm
from runnel.config import spec_json
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError, nearest
from runnel.evaluation import onnx_file
from runnel.evaluation.acting_function import ACTION, ActingFunction, Port, acting_function
from runnel.evaluation.loading import make
from runnel.evaluation.stablehlo_file import to_stablehlo
from runnel.execution.policies.stored_policies import (
    NOT_LEARNT,
    Source,
    StoredPolicy,
    find,
    learnt,
    of_member,
    split_name,
)
from runnel.execution.run import Run
from runnel.policy import Policies, Policy
from runnel.recording import members_file
from runnel.recording.files import as_user_error, clean, one_line, write_atomically
from runnel.recording.policy_store import LATEST, PolicyStore, Snapshot
from runnel.system import startup
from runnel.types import AgentSpec, Discrete, MultiDiscrete

Format = Literal["stablehlo", "onnx"]
FORMATS: Final[tuple[str, ...]] = get_args(Format)
DESCRIPTION: Final = "model.json"
DESCRIPTION_FORMAT: Final = 1


def export(
    source: Source | Policy | Policies,
    out: str | Path | None = None,
    format: Format = "stablehlo",
    tag: str = LATEST,
    group: str | None = None,
    *,
    member: int | None = None,
    opset: int | None = None,
    algorithm: Algorithm | None = None,
    trust: Collection[str] = (),
) -> Path:
    """Writes a policy for programs without Runnel, and returns the new directory.

    `source`, `tag`, `group`, `member`, `algorithm` and `trust` are as for `runnel.load`; a loaded policy is also a
    source.

    `out`: a directory that is new or empty; without it, one in the current directory that is named after run, group,
    tag and format. `opset`: the version of ONNX's operators, for a runtime that does not know the newest.
    """
    _check(format, opset)
    if member is not None:
        source = of_member(source, member)  # type: ignore[arg-type]
    if isinstance(source, Policies):
        source = source[_only(source.groups, group)]
    directory = Path(out) if out is not None else _named(source, tag, group, format)
    _check_new(directory)
    startup.phase("reading the policy")
    configure_jax()
    policy = source if isinstance(source, Policy) else _found(source, tag, group, algorithm, trust)
    if format == "onnx":
        policy = in_float32(policy)
    startup.phase(f"exporting to {format}")
    function = _traced(policy)
    if format == "onnx":
        content, versions = onnx_file.to_onnx(function, opset)
    else:
        content, versions = to_stablehlo(function)
    model = f"model.{format}"
    described = _described(policy, function, {"format": format, "file": model}, versions)
    with as_user_error(directory):
        directory.mkdir(parents=True, exist_ok=True)
        _check_new(directory)
    write_atomically(directory / model, content)
    write_atomically(directory / DESCRIPTION, (json.dumps(described, indent=2, allow_nan=False) + "\n").encode())
    return directory


def _check(format: str, opset: int | None) -> None:
    if format not in FORMATS:
        raise UserError(f"there is no format '{format}'{nearest(str(format), FORMATS)}", keywords=("format",))
    if opset is not None and format != "onnx":
        raise UserError(f"opset={opset} is for format='onnx'; leave it out", keywords=("opset", "format"))
    if format == "onnx":
        onnx_file.check_installed()


def _check_new(directory: Path) -> None:
    with as_user_error(directory, "read"):
        if os.path.lexists(directory) and (not directory.is_dir() or os.listdir(directory)):
            raise UserError(
                f"{directory} is there already and not empty; nothing was written: choose another directory with out=",
                keywords=("out",),
                page="command-line#export",
            )


def _named(source: Source | Policy, tag: str, group: str | None, format: str) -> Path:
    """The default output directory: RUN[-GROUP][-TAG]-FORMAT."""
    match source:
        case Policy():
            name, tag = type(source.algorithm).__name__.lower(), LATEST
        case Run():
            name = source.run_dir.resolve().name
        case Snapshot():
            name, tag = source.run_dir.resolve().name, str(source.version)
        case PolicyStore():
            name = source.run_dir.resolve().name
        case _:
            directory, tag = split_name(source, tag)
            members_file.refuse_several(directory)
            name = directory.resolve().name
            if members_file.holds_members(directory.resolve().parent):
                name = f"{directory.resolve().parent.name}-{name}"
    words = (name, group, None if tag == LATEST else tag, format)
    return Path("-".join(word.replace("/", "_") for word in words if word))


def _found(source: Source, tag: str, group: str | None, algorithm: Algorithm | None, trust: Collection[str]) -> Policy:
    stored: Mapping[str, StoredPolicy] = find(source, tag, group, algorithm)
    stored = stored if group is not None else learnt(stored)
    if group in stored and str(stored[group].config.algorithm.get("class")).endswith(NOT_LEARNT):
        raise UserError(f"group '{group}': found an opponent pool or a function, expected a policy that has learnt")
    return make(stored[_only(stored, group)], "cpu", 0, trust)


def _only(groups: Collection[str], group: str | None) -> str:
    """The group to export."""
    if group is None and len(groups) > 1:
        raise UserError(
            f"found policies of the groups {', '.join(groups)}, expected one: name it with group=", keywords=("group",)
        )
    return group or next(iter(groups))


def _traced(policy: Policy) -> ActingFunction:
    try:
        return acting_function(policy)
    except UserError:
        raise
    except Exception as error:
        act = f"{type(policy.algorithm).__name__}.act"
        raise UserError(
            f"this policy cannot be exported: {act} fails: {type(error).__name__}: {one_line(error)}",
            page="export#what-can-be-exported",
        ) from error


def in_float32(policy: Policy) -> Policy:
    """The policy with networks that compute in float32: runtimes of ONNX lack operators of bfloat16."""
    if policy.config.precision == "float32":
        return policy
    return Policy(policy.algorithm, replace(policy.config, precision="float32"), policy.arrays, device="cpu")


# model.json


def _described(
    policy: Policy, function: ActingFunction, kind: Mapping[str, str], versions: Mapping[str, Any]
) -> dict[str, Any]:
    config = policy.config
    return {
        "what": "exported policy",
        "description_format": DESCRIPTION_FORMAT,
        **kind,
        "runnel_version": __version__,
        "jax_version": jax.__version__,
        **versions,
        "algorithm": type(policy.algorithm).__name__,
        "precision": policy.config.precision,
        "group": config.group,
        "agents": list(policy.spec.names),
        "version": config.version,
        "env_steps": config.env_steps,
        "trained_on": config.trained_on,
        "inputs": [_port_json(port, policy.spec) for port in function.inputs],
        "outputs": [_port_json(port, policy.spec) for port in function.outputs],
        "action": _action_json(policy.spec, function.outputs[0]),
    }


def _port_json(port: Port, spec: AgentSpec) -> dict[str, Any]:
    said: dict[str, Any] = {
        "name": port.name,
        "role": port.role,
        "path": list(port.path),
        "shape": ["batch", *port.shape],
        "dtype": str(port.dtype),
    }
    if port.space is not None:
        said["space"] = clean(spec_json.to_json(AgentSpec(port.space, spec.action))["observation"])
    if port.initial is not None:
        said |= {"initial": _numbers(port.initial), "next": f"next_{port.name}"}
    return said


def _action_json(spec: AgentSpec, port: Port) -> dict[str, Any]:
    """The environment's action space and dtype; JAX may lack the dtype by default."""
    native = spec.native
    return {
        "output": ACTION,
        "space": {**clean(spec_json.to_json(spec)["action"]), **_start_json(spec)},
        "shape": list(port.shape),
        "dtype": str(port.dtype if native is None else native.action_dtype),
    }


def _start_json(spec: AgentSpec) -> dict[str, Any]:
    """The offset of integer actions, which is already added."""
    if not isinstance(spec.action, Discrete | MultiDiscrete):
        return {}
    return {"start": 0 if spec.native is None else np.asarray(spec.native.action_start).tolist()}


def _numbers(array: np.ndarray) -> Any:
    """Nested lists; values that are not finite are written as text, such as "inf", which NumPy reads."""
    if array.dtype.kind in "iub":
        return array.tolist()
    flat = [x if np.isfinite(x) else str(x) for x in array.astype(np.float64).ravel().tolist()]
    return np.array(flat, object).reshape(array.shape).tolist()
