"""Compresses a stream's messages on their way, where measurements show that they arrive earlier."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter
from typing import Any

from runnel.transport.wire import Parts

SMALL_BYTES = 4 * 1024
"""Messages smaller than this are sent as they are."""

TRIALS, TRIAL_EVERY = (0, 1, 2, 10, 100), 1000
"""The numbers of the messages that are tried first, and the interval of later trials: the wire's rate changes."""


def _lz4() -> Any:
    try:
        return import_module("lz4.block")
    except ImportError:
        return None  # an extra: without it nothing is compressed


class Compressor:
    """The decision for one stream, whose messages have `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pays = False
        self.ratio = 1.0
        """The ratio by which the last tried message was compressed."""
        self._lz4: Any = _lz4() if size >= SMALL_BYTES else None
        self._messages = 0

    def pack(self, payload: bytes, bytes_per_s: float) -> bytes | None:
        """The compressed payload, to be sent at a rate of `bytes_per_s`; None if it should be sent as it is."""
        if self._lz4 is None:
            return None
        number, self._messages = self._messages, self._messages + 1
        if number in TRIALS or number % TRIAL_EVERY == 0:
            packed = self._try(payload, bytes_per_s)
        elif self.pays:
            packed = self._compress(payload)
        else:
            return None
        return packed if self.pays and len(packed) < len(payload) else None

    def _compress(self, payload: bytes) -> bytes:
        return self._lz4.compress(payload, mode="fast", store_size=False)

    def _try(self, payload: bytes, bytes_per_s: float) -> bytes:
        started = perf_counter()
        packed = self._compress(payload)
        if len(packed) < len(payload):  # else it never pays
            self._lz4.decompress(packed, uncompressed_size=len(payload))
        spent_s = perf_counter() - started
        self.ratio = len(payload) / max(1, len(packed))
        self.pays = spent_s + len(packed) / bytes_per_s < len(payload) / bytes_per_s
        return packed


def unpacks() -> bool:
    """Whether this process can decompress."""
    return _lz4() is not None


def unpack(packed: Parts, size: int) -> Parts:
    """The decompressed payload; nothing if the input is invalid or does not have `size` bytes."""
    lz4 = _lz4()
    if lz4 is None:
        return []
    try:
        payload = lz4.decompress(b"".join(packed), uncompressed_size=size)
    except lz4.LZ4BlockError:
        return []
    return [memoryview(payload)] if len(payload) == size else []
