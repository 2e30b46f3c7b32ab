"""Messages between the driver and a host agent: JSON with arrays, once and in order, whatever the network does.

A message is kept until the other side acknowledges it, and sent again if that takes too long.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runnel.launch.framing import MalformedMessage, Received, arrays_of, describe, encode, parse

if TYPE_CHECKING:
    import numpy as np

_HEADER = struct.Struct("<4sQQQ")  # magic; number, 0 where it only acknowledges; the last received; bytes of JSON
_MAGIC = b"rnm1"

FRAME_BYTES = 2**19
"""Long messages travel in pieces: a socket takes no frame beyond its limit."""

AGAIN_S, BYTES_PER_S = 2.0, 20e6
"""When what was not acknowledged is sent again: after so long, and as long as its bytes take on a slow network."""


class _SentMail(NamedTuple):
    number: int
    text_bytes: int
    frames: list[bytes]


class AgentMail:
    """One side. `transmit` sends frames and returns whether it could."""

    def __init__(self, transmit: Callable[[Sequence[bytes]], bool], clock: Callable[[], float] = time.monotonic):
        self._transmit, self._clock = transmit, clock
        self._kept: deque[_SentMail] = deque()  # not yet acknowledged
        self._sent = 0  # the number of the last message made
        self._out = 0  # and of the last that went out
        self._received = 0
        self._acknowledged = 0  # of those received
        self._moved = clock()  # when the other side last acknowledged something new
        self.heard = clock()  # when its last message arrived

    def send(self, value: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Never waits and never fails: it goes out when it can."""
        self._sent += 1
        entries, parts = describe(arrays or {})
        text = encode({"value": value, "arrays": entries})
        if not self._kept:
            self._moved = self._clock()
        self._kept.append(_SentMail(self._sent, len(text), list(_pieces([text, *parts]))))
        self._push()

    @property
    def unacknowledged(self) -> int:
        """How many messages the other side may not have."""
        return len(self._kept)

    def tick(self) -> None:
        """To be called several times a second: sends what could not be sent, or has to be again, and acknowledges."""
        now = self._clock()
        size = sum(len(frame) for each in self._kept for frame in each.frames)
        if self._kept and now > self._moved + AGAIN_S + size / BYTES_PER_S:
            self._out, self._moved = self._kept[0].number - 1, now
        self._push()
        if self._acknowledged < self._received and self._transmit([self._header(0, 0)]):
            self._acknowledged = self._received

    def take(self, frames: Sequence[Any]) -> Received | None:
        """The message that these frames hold; None if they only acknowledge, or if it has arrived before."""
        if not frames or len(frames[0]) != _HEADER.size:
            raise MalformedMessage("found a message without a header")
        magic, number, received, text_bytes = _HEADER.unpack(frames[0])
        if magic != _MAGIC or received > self._sent:
            raise MalformedMessage("found a header that no mail has")
        self.heard = self._clock()
        while self._kept and self._kept[0].number <= received:
            self._kept.popleft()
            self._moved = self.heard
        if number == 0:
            return None
        if number != self._received + 1:
            self._acknowledged = 0  # the other side has not heard what came before, or not that it came
            return None
        message = _message(b"".join(frames[1:]), text_bytes)
        self._received = number
        return message

    def _push(self) -> None:
        for each in self._kept:
            if each.number <= self._out:
                continue
            if not self._transmit([self._header(each.number, each.text_bytes), *each.frames]):
                return
            self._out, self._acknowledged = each.number, self._received

    def _header(self, number: int, text_bytes: int) -> bytes:
        return _HEADER.pack(_MAGIC, number, self._received, text_bytes)


def _pieces(parts: Sequence[bytes | memoryview]) -> Iterator[bytes]:
    whole = memoryview(b"".join(parts))
    for start in range(0, len(whole), FRAME_BYTES):
        yield bytes(whole[start : start + FRAME_BYTES])


def _message(body: bytes, text_bytes: int) -> Received:
    if text_bytes > len(body):
        raise MalformedMessage(f"found {len(body)} bytes, expected {text_bytes} of JSON")
    head = parse(body[:text_bytes])
    value, entries = head.get("value"), head.get("arrays")
    if not isinstance(value, dict) or not isinstance(entries, list):
        raise MalformedMessage("found JSON without a value, or without a list of arrays")
    return Received(value, (), arrays_of(body[text_bytes:], entries) if entries else {})
