"""Writes a policy as StableHLO: a file that `jax.export` reads, with JAX and nothing else."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.export

from runnel.config.jax_config import lowering_for_elsewhere
from runnel.errors import UserError
from runnel.evaluation.acting_function import ActingFunction
from runnel.recording.files import one_line

ALLOWED = frozenset({"shape_assertion"})
"""Custom calls that JAX resolves itself when it reads the file: they check the size of the batch."""


def to_stablehlo(function: ActingFunction) -> tuple[bytes, dict[str, Any]]:
    """The content of the file, and its part of `model.json`.

    The program is lowered once, without operations for a particular kind of device, so it runs on all of them.
    """
    (batch,) = jax.export.symbolic_shape("batch")
    inputs = [jax.ShapeDtypeStruct((batch, *port.shape), port.dtype) for port in function.inputs]

    def policy(*inputs: Any) -> Any:
        return function(*inputs)

    try:
        with lowering_for_elsewhere():
            exported = jax.export.export(
                jax.jit(policy, keep_unused=True),
                platforms=("cpu",),
                disabled_checks=[jax.export.DisabledSafetyCheck.platform()],
            )(*inputs)
            content = bytes(exported.serialize())
    except Exception as error:
        raise UserError(
            f"this policy cannot be exported as StableHLO: {type(error).__name__}: {one_line(error)}"
        ) from error
    calls = set(re.findall(r"custom_call @(\w+)", exported.mlir_module())) - ALLOWED
    if calls:
        raise UserError(
            f"this policy cannot be exported as StableHLO: it calls '{min(calls)}', a kernel outside of StableHLO; use "
            "a network without it",
            page="export#what-can-be-exported",
        )
    return content, {"calling_convention": exported.calling_convention_version}
