"""The interface of a transport: how workers of one machine create streams and parameter stores and attach to them.

The host that launches the workers calls `create_*`. It passes `fileno()` of each stream and store to the workers that
use it, and they call `attach_*`. Shared memory (`shared_memory.TRANSPORT`) is the default. All transports share the
same bells: `shared_memory.SharedBell`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runnel.config.serialization import import_object, path_of
from runnel.errors import UserError
from runnel.transport.parameter_store import ParameterStore
from runnel.transport.stream import Schema, Stream

SHARED_MEMORY = "runnel.transport.shared_memory:TRANSPORT"
"""The import path of the default."""


@dataclass(frozen=True)
class Transport:
    """A record of functions that other processes find by its import path: a name in a module."""

    create_stream: Callable[[Schema, int], Stream]
    """A new stream of this schema and this many slots."""
    attach_stream: Callable[[int, Schema, int], Stream]
    """The stream behind a descriptor, which this function closes once it is no longer needed."""
    stream_bytes: Callable[[Schema, int], int]
    """The bytes of the machine's memory that a stream takes, counted before the run starts."""
    create_store: Callable[[Schema], ParameterStore]
    """A new, empty parameter store."""
    attach_store: Callable[[int, Schema], ParameterStore]
    """The store behind a descriptor, which this function closes once it is no longer needed."""
    store_bytes: Callable[[Schema], int]
    """The bytes of the machine's memory that a store takes."""


def load(path: str) -> Transport:
    """The transport at `package.module:NAME`."""
    found = import_object(path)
    if not isinstance(found, Transport):
        raise UserError(f"found {path}, a {type(found).__name__}; expected a runnel.transport.interface.Transport")
    return found


def import_path(transport: Transport | str | None) -> str:
    """The import path by which other processes load a transport; raises `UserError` if they cannot."""
    if transport is None:
        return SHARED_MEMORY
    if isinstance(transport, str):
        load(transport)
        return transport
    path = path_of(transport)
    if path is None:
        raise UserError(
            "found a transport that is no attribute of a module, so workers cannot import it; assign it to a name in a "
            "module"
        )
    return path
