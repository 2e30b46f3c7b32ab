"""A transport: streams and parameter stores whose memory is unnamed files of a directory, such as one of huge pages."""

import os
import tempfile

from runnel.transport.interface import Transport
from runnel.transport.parameter_store import SharedStore
from runnel.transport.parameter_store import size as store_bytes
from runnel.transport.ring import SlotLayout
from runnel.transport.shared_memory import SharedRing
from runnel.transport.shared_memory import size as stream_bytes
from runnel.transport.stream import Schema


def memory(size: int) -> int:
    with tempfile.TemporaryFile(dir=os.environ.get("MEMORY_DIRECTORY")) as file:
        file.truncate(size)
        return os.dup(file.fileno())


def create_stream(schema: Schema, slots: int) -> SharedRing:
    layout = SlotLayout(schema, slots)
    return SharedRing(memory(layout.size), layout, new=True)


def create_store(schema: Schema) -> SharedStore:
    return SharedStore(memory(store_bytes(schema)), schema, new=True)


TRANSPORT = Transport(
    create_stream=create_stream,
    attach_stream=SharedRing.attach,
    stream_bytes=stream_bytes,
    create_store=create_store,
    attach_store=SharedStore.attach,
    store_bytes=store_bytes,
)
