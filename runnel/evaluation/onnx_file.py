"""Writes a policy as ONNX, by jax2onnx: a file that onnxruntime and others read, without JAX."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from runnel.errors import NotInstalled, UserError
from runnel.evaluation.acting_function import MASK, ActingFunction, Port
from runnel.recording.files import one_line
from runnel.types import Array, Box, Discrete, MultiDiscrete

ROWS: Final = 32
AGREE: Final = 0.9
"""The share of a trial's rows whose actions must agree: of actions equally good to 7 digits, either may be chosen."""

PATCHED: Final = ("jax", "flax")
"""Libraries whose functions jax2onnx replaces by its own."""


def _stack(*parts: Array, axis: int) -> list[Array]:
    return [lax.concatenate([lax.expand_dims(part, (axis,)) for part in parts], axis)]


def _unstack(x: Array, *, axis: int) -> list[Array]:
    return [lax.index_in_dim(x, k, axis, keepdims=False) for k in range(x.shape[axis])]


def _remainder(x: Array, y: Array) -> list[Array]:
    whole = jnp.issubdtype(jnp.result_type(x), jnp.integer)
    return [lax.sub(x, lax.mul(lax.div(x, y), y)) if whole else lax.rem(x, y)]


REPLACED: Final = {"stack": _stack, "unstack": _unstack, "rem": _remainder}
"""Primitives that jax2onnx lacks, or converts only for a batch of known size."""


def check_installed() -> None:
    """Refuses early where jax2onnx is not installed."""
    if importlib.util.find_spec("jax2onnx") is None:
        raise NotInstalled("format='onnx'", "'jax2onnx'", "onnx", keywords=("format",))


def to_onnx(function: ActingFunction, opset: int | None = None) -> tuple[bytes, dict[str, Any]]:
    """The content of the file, and its part of `model.json`. Refuses a file that acts differently from the policy."""
    try:
        with _quiet(), _functions_restored():
            content, version = _converted(function, opset)
            outputs = _tried(function, content)
    except UserError:
        raise
    except Exception as error:
        remedy = "format='stablehlo'" if opset is None else f"another than opset={opset}"
        raise UserError(
            f"this policy cannot be exported as ONNX: {_reason(error)}; try {remedy}", keywords=("format", "opset")
        ) from error
    for port, wanted, found in outputs:
        if not _agree(wanted, found):
            raise UserError(
                f"this policy cannot be exported as ONNX: '{port.name}' of what jax2onnx makes of it differs from the "
                "policy's own; try format='stablehlo'",
                keywords=("format",),
            )
    return content, {"opset": version}


def _converted(function: ActingFunction, opset: int | None) -> tuple[bytes, int]:
    import jax2onnx
    import onnx

    convert: Any = jax2onnx.to_onnx
    model = convert(
        function._replace(replaced=REPLACED),
        [jax.ShapeDtypeStruct(("batch", *port.shape), port.dtype) for port in function.inputs],
        model_name="policy",
        enable_double_precision=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        input_names=[port.name for port in function.inputs],
        output_names=[port.name for port in function.outputs],
        **({} if opset is None else {"opset": opset}),
    )
    onnx.checker.check_model(model)
    return model.SerializeToString(), next(each.version for each in model.opset_import if not each.domain)


def _tried(function: ActingFunction, content: bytes) -> list[tuple[Port, np.ndarray, np.ndarray]]:
    """The results of the function and of the file on the same random inputs, by output."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    drawing = np.random.default_rng(0)
    given = [_drawn(port, drawing) for port in function.inputs]
    named = {port.name: value for port, value in zip(function.inputs, given, strict=True)}
    found = session.run([port.name for port in function.outputs], named)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = [np.asarray(x) for x in jax.jit(lambda *inputs: function(*inputs))(*given)]
    return list(zip(function.outputs, wanted, map(np.asarray, found), strict=True))


def _drawn(port: Port, drawing: np.random.Generator) -> np.ndarray:
    """[ROWS, ...] random values for an input."""
    shape, dtype = (ROWS, *port.shape), port.dtype
    if port.role == MASK:
        return np.where(np.arange(shape[-1]) == 0, True, drawing.random(shape) < 0.7).astype(dtype)
    match port.space:
        case Discrete(n):
            return drawing.integers(0, n, shape).astype(dtype)
        case MultiDiscrete(sizes):
            return drawing.integers(0, sizes, shape).astype(dtype)
        case Box() if dtype.kind in "iub":
            low, high = (np.asarray(x, np.int64) for x in (port.space.low, port.space.high))
            return drawing.integers(low, np.minimum(high, low + 255), shape, endpoint=True).astype(dtype)
        case Box():
            return np.clip(drawing.standard_normal(shape), port.space.low, port.space.high).astype(dtype)
    start = np.zeros((), dtype) if port.initial is None else port.initial
    noise = 0.1 * drawing.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape, dtype)
    return (start + noise).astype(dtype)


def _agree(wanted: np.ndarray, found: np.ndarray) -> bool:
    if wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    if wanted.size == 0:
        return True
    near = np.isclose(wanted.astype(np.float64), found.astype(np.float64), rtol=1e-3, atol=1e-4, equal_nan=True)
    return float(np.mean(near.reshape(len(near), -1).all(-1))) >= AGREE


def _reason(error: Exception) -> str:
    lacking = re.search(r"[Nn]o plugins? (?:registered )?for (?:primitive )?'([\w.-]+)'", str(error))
    if lacking:
        return f"jax2onnx cannot convert JAX's primitive '{lacking[1]}'"
    return f"{type(error).__name__}: {one_line(error)}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the libraries' warnings about incompatible parts of their own."""
    loggers = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _functions_restored() -> Iterator[None]:
    """Restores functions of JAX afterwards, some of which jax2onnx leaves replaced.

    `jnp.cumsum`, for example, is replaced by a function with fewer arguments; later training in this process needs
    JAX's own.
    """
    before = list(_functions())
    try:
        yield
    finally:
        for module, name, value in before:
            if getattr(module, name, None) is not value:
                setattr(module, name, value)


def _functions() -> Iterator[tuple[Any, str, Any]]:
    for path, module in list(sys.modules.items()):
        if path.partition(".")[0] in PATCHED and "._src" not in path and module is not None:
            yield from ((module, name, value) for name, value in list(vars(module).items()) if callable(value))
