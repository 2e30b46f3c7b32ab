"""A control's message as bytes: JSON, and arrays behind it as raw bytes with a dtype and a shape.

Nothing that is read is executed, and nothing is believed: sizes are checked before memory is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.errors import MalformedMessage

if TYPE_CHECKING:
    import numpy as np

ALIGNMENT = 64
_MAX_JSON_BYTES = 1 << 30
_PLAIN_DTYPE = re.compile(r"[<>|][biufcSU]\d+")


class Received(NamedTuple):
    """One message."""

    value: dict[str, Any]
    fds: tuple[int, ...] = ()  # owned by this process, which must close them
    arrays: Mapping[str, np.ndarray] = {}


def encode(value: Mapping[str, Any]) -> bytes:
    """A JSON object."""
    if not isinstance(value, Mapping):
        raise TypeError(f"found a {type(value).__name__}, expected a JSON object (a dict)")
    return json.dumps(value, separators=(",", ":")).encode()


@contextlib.contextmanager
def memfd(parts: Sequence[bytes | memoryview]) -> Iterator[int]:
    """A memfd that holds these, for as long as the context; a descriptor that was sent keeps it longer."""
    fd = os.memfd_create("runnel-message", os.MFD_CLOEXEC)
    try:
        for part in parts:
            view = memoryview(part).cast("B") if len(part) else memoryview(b"")
            while view:
                view = view[os.write(fd, view[: 1 << 30]) :]
        yield fd
    finally:
        os.close(fd)


def decode(kind: bytes, length: int, body: bytes, fds: list[int]) -> Received:
    """The message that a last packet completes; closes the memfd, if there is one, and hands over the rest."""
    if kind == b"J":
        if length != len(body):
            raise MalformedMessage(f"found {len(body)} bytes of JSON, expected {length}")
        return Received(parse(body), tuple(fds))
    if not fds:
        raise MalformedMessage("found a message in a memfd, without the memfd")
    body_fd = fds[-1]
    try:
        size = os.fstat(body_fd).st_size
        if length > min(size, _MAX_JSON_BYTES) or (kind == b"M" and length != size):
            raise MalformedMessage(f"found {size} bytes in a memfd, expected {length} of JSON")
        text = bytearray(length)
        _read(body_fd, memoryview(text), 0)
        value = parse(bytes(text))
        if kind == b"M":
            received = Received(value, tuple(fds[:-1]))
        else:
            header, entries = value.get("header"), value.get("arrays")
            if not isinstance(header, dict) or not isinstance(entries, list) or len(fds) != 1:
                raise MalformedMessage("found arrays without a header, or with descriptors")
            received = Received(header, (), _arrays(entries, length, size, partial(_read, body_fd)))
    except OSError as error:
        raise MalformedMessage(f"found a descriptor that cannot be read as a memfd: {error}") from error
    os.close(body_fd)
    return received


def parse(text: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedMessage(f"found {text[:40]!r}, expected JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedMessage(f"found a JSON {type(value).__name__}, expected an object")
    return value


def _read(fd: int, view: memoryview, offset: int) -> None:
    while view:
        count = os.preadv(fd, [view[: 1 << 30]], offset)
        if not count:
            raise MalformedMessage(f"found a memfd that ends {len(view)} bytes early")
        view, offset = view[count:], offset + count


def describe(arrays: Mapping[str, np.ndarray]) -> tuple[list[dict[str, Any]], list[bytes | memoryview]]:
    """For each array what its receiver must know, and the bytes, padded so that each begins aligned."""
    import numpy as np

    entries: list[dict[str, Any]] = []
    parts: list[bytes | memoryview] = []
    for name, value in arrays.items():
        try:
            whole = np.asarray(value, order="C")
            dtype = _dtype_name(whole.dtype)
        except TypeError as error:
            raise TypeError(
                f"array '{name}' cannot be sent: {error}; expected numbers (of a JAX key, its jax.random.key_data)"
            ) from error
        entries.append({"name": name, "dtype": dtype, "shape": list(whole.shape)})
        # Bytes, because a buffer of bfloat16 has no format that memoryview knows.
        parts.append(whole.reshape(-1).view(np.uint8).data)
        parts.append(bytes(-whole.nbytes % ALIGNMENT))
    return entries, parts


def _dtype_name(dtype: np.dtype) -> str:
    if dtype.type.__module__.startswith("ml_dtypes"):  # bfloat16 and its like
        return dtype.name
    if _PLAIN_DTYPE.fullmatch(dtype.str):
        return dtype.str
    raise TypeError(f"found dtype {dtype}")


def _dtype(name: Any) -> np.dtype:
    import numpy as np

    if not isinstance(name, str) or not name.isascii():
        raise MalformedMessage(f"found {name!r}, expected the name of a dtype")
    if _PLAIN_DTYPE.fullmatch(name):
        try:
            return np.dtype(name)
        except (TypeError, ValueError, OverflowError):
            raise MalformedMessage(f"found dtype '{name}', which NumPy does not know") from None
    dtype = getattr(importlib.import_module("ml_dtypes"), name, None)
    if not isinstance(dtype, type) or not issubclass(dtype, np.generic):
        raise MalformedMessage(f"found dtype '{name}', expected one of NumPy's or ml_dtypes'")
    return np.dtype(dtype)


def arrays_of(data: bytes, entries: list[Any]) -> dict[str, np.ndarray]:
    """The arrays that `describe` described, from their bytes."""
    view = memoryview(data)

    def read(into: memoryview, offset: int) -> None:
        into[:] = view[offset : offset + len(into)]

    return _arrays(entries, 0, len(view), read)


def _arrays(
    entries: list[Any], offset: int, size: int, read: Callable[[memoryview, int], None]
) -> dict[str, np.ndarray]:
    import numpy as np

    arrays: dict[str, np.ndarray] = {}
    for entry in entries:
        name, shape = (entry.get("name"), entry.get("shape")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(shape, list):
            raise MalformedMessage(f"found {str(entry)[:60]}, expected an array's name, dtype and shape")
        if len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape):
            raise MalformedMessage(f"found shape {str(shape)[:60]} of array '{name}'")
        dtype = _dtype(entry.get("dtype"))
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > size - offset:  # before any memory is asked for
            raise MalformedMessage(f"found {size - offset} bytes for array '{name}', expected {nbytes}")
        raw = np.empty(nbytes, np.uint8)
        read(raw.data, offset)
        try:
            arrays[name] = raw.view(dtype).reshape(shape)
        except ValueError as error:
            raise MalformedMessage(f"found shape {shape} and dtype {dtype} of array '{name}': {error}") from None
        offset += nbytes + -nbytes % ALIGNMENT
    return arrays
