"""A courier's link to one peer: the entries to be sent, those not acknowledged yet, and the measured rate.

Batches are numbered, and each acknowledges the last one received the other way. A connection loses nothing and keeps
the order while it lasts; after it broke, everything that was not acknowledged is sent again, beginning with a batch
that is marked as fresh. A receiver that finds a gap without one asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from runnel.transport import wire
from runnel.transport.compression import unpacks
from runnel.transport.curve import Call

BEAT_S = 1.0
"""The interval in seconds at which a batch is sent, even an empty one."""

ANSWER_S = 0.1
"""The seconds that an acknowledgement may wait for a batch to travel in."""

AGAIN_S, SLOW_BYTES_PER_S = 2.0, 1e6
"""The seconds, plus the time for the bytes, after which unacknowledged batches are sent again although the connection
lasts."""

RATE_BYTES = 64 * 1024
"""The smallest batch, in bytes, by which the rate of the wire is measured; smaller ones measure the latency."""

START_BYTES_PER_S = 125e6
_FORGETS = 0.9
_ENTRY_BYTES = 64  # or less

Make = Callable[[int], "wire.Parcel | None"]
"""Creates an entry when it is sent, in the batch of a number; None if it is no longer needed."""


class _SentMessage(NamedTuple):
    number: int
    at: float
    size: int
    entries: int


class PeerLink:
    """The link to one peer. `call` is one-way: the peer's messages arrive through the door."""

    def __init__(self, name: str, call: Call) -> None:
        self.name, self.call = name, call
        self.heard_at: float | None = None  # when the peer said anything
        self.bytes_per_s, self._is_measured = START_BYTES_PER_S, False
        self._connections = 0
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Resets the link for a new epoch."""
        self.epoch = epoch
        self.number = 0  # of the last batch sent
        self.heard = 0  # of the last one the peer has heard
        self.came = 0  # of the last one received
        self.unpacks = False
        self.is_up = False
        self._asks, self._asked_at = False, 0.0
        self._answer_by = inf
        self._answered_at = self._sent_at = 0.0
        self.afresh()

    def afresh(self) -> None:
        """Drops the outbox; entries that were not acknowledged must be put again."""
        self._outbox: deque[Make] = deque()
        self._ready: tuple[list[wire.Payload], int, bool] | None = None  # a batch that could not be sent yet
        self._unheard: deque[_SentMessage] = deque()
        self._fresh = True

    def put(self, make: Make) -> None:
        """Puts an entry into the next batch. Without a connection it is dropped: a new connection begins with
        everything unacknowledged."""
        if self.is_up:
            self._outbox.append(make)

    # Received batches

    def admits(self, head: wire.BatchHead, now: float) -> str | None:
        """The reason why a batch cannot be accepted now; None if it can."""
        if head.number == self.came + 1 or (head.fresh and head.number > self.came):
            return None
        if head.number <= self.came:
            return "again"
        if now > self._asked_at + AGAIN_S / 4:
            self._asks, self._asked_at = True, now
        return "out of order"

    def take(self, head: wire.BatchHead, size: int, entries: int, now: float) -> bool:
        """Records an accepted batch. Returns whether everything unacknowledged is to be sent again."""
        self.came, self.unpacks = head.number, head.unpacks
        if entries:
            self._answer_by = min(self._answer_by, now + (0.0 if size >= RATE_BYTES else ANSWER_S))
        # A fresh batch of a peer that has heard nothing: it was not ready for this epoch when something was sent.
        forgot = head.fresh and head.heard == 0 and self.number > 0
        heard: list[_SentMessage] = []
        while self._unheard and self._unheard[0].number <= head.heard:
            heard.append(self._unheard.popleft())
        if heard:
            self._rate(heard, now)
            self._answered_at = now
        self.heard = max(self.heard, head.heard)
        return forgot or head.asks

    def _rate(self, heard: list[_SentMessage], now: float) -> None:
        """Measures rate and latency by batches that were acknowledged together: the last of them was answered at once
        if it was long."""
        took_s = now - max(heard[0].at, self._answered_at)
        if heard[-1].size >= RATE_BYTES and took_s > 0:
            rate = sum(sent.size for sent in heard) / took_s
            # The best recent rate: an answer may be late, never early.
            self.bytes_per_s = max(rate, _FORGETS * self.bytes_per_s) if self._is_measured else rate
            self._is_measured = True

    # Sent batches

    def renewed(self) -> bool:
        """Whether there is a new connection: everything unacknowledged is to be sent again."""
        was_up, self.is_up = self.is_up, self.call.connected()
        before, self._connections = self._connections, self.call.connections
        return self.is_up and not (was_up and before == self._connections)

    def overdue(self, now: float) -> bool:
        """Whether an acknowledgement is overdue."""
        first = next((sent for sent in self._unheard if sent.entries), None)
        if first is None:
            return False
        size = sum(sent.size for sent in self._unheard)
        return now > max(first.at, self._answered_at) + AGAIN_S + size / SLOW_BYTES_PER_S

    def flush(self, now: float) -> tuple[int, int]:
        """Sends the entries in as few batches as possible; returns their number, and their bytes on the wire."""
        batches = total = 0
        while self.is_up and (self._ready is not None or self._outbox or self._due(now)):
            frames, entries, fresh = self._ready = self._ready or self._batch()
            if not self.call.send(frames, copy=False):
                break
            size = wire.wire_bytes(frames)
            batches, total = batches + 1, total + size
            self.number += 1
            self._unheard.append(_SentMessage(self.number, now, size, entries))
            self._ready, self._fresh = None, self._fresh and not fresh
            self._asks, self._answer_by, self._sent_at = False, inf, now
        return batches, total

    def _due(self, now: float) -> bool:
        """Whether a batch must be sent although there are no entries."""
        return self._asks or self._fresh or now >= min(self._answer_by, self._sent_at + BEAT_S)

    def _batch(self) -> tuple[list[wire.Payload], int, bool]:
        parcels: list[wire.Parcel] = []
        total = first = 0
        while self._outbox and total < wire.BATCH_BYTES and first < wire.FRAME_BYTES:
            parcel = self._outbox.popleft()(self.number + 1)
            if parcel is not None:
                parcels.append(parcel)
                size = 0 if parcel[1] is None else len(parcel[1])
                total += size
                first += _ENTRY_BYTES + (size if size < wire.INLINE_BYTES else 0)
        head = wire.BatchHead(self.epoch, self.number + 1, self.came, self._fresh, self._asks, unpacks())
        return wire.encode(head, parcels), len(parcels), self._fresh
