"""The messages between couriers: batches of typed entries, as frames of bytes. Nothing here is ever unpickled.

A batch is a head, its entries one after the other, and their payloads: short ones in the first frame, longer ones in
separate frames. Frames are validated here; an invalid one raises `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

INLINE_BYTES = 16 * 1024
"""The size below which a payload is copied into the first frame, which costs less than a separate frame."""

FRAME_BYTES = 2**19
"""Longer payloads are sent in frames of this size. No frame is longer than twice that, which limits the memory for a
frame; and each frame that arrives counts as a heartbeat, however slow the network."""

BATCH_BYTES = 2**22
"""The size of a full batch; also full is one with FRAME_BYTES in its first frame, which need not wait for the rest."""

_MAGIC = b"rnl1"
_HEAD = struct.Struct("<4sBIqqq")
_NONE = -(2**63)


class Malformed(Exception):
    """Invalid frames; the message is the kind of fault, by which it is counted."""


class BatchHead(NamedTuple):
    """The head of a batch."""

    epoch: int
    number: int  # 1, 2, 3 ... in an epoch
    heard: int  # the number of the last batch received the other way
    fresh: bool  # it does not depend on those before it, which may be lost
    asks: bool  # for a fresh one, as something was lost
    unpacks: bool  # the sender can read what is compressed


class Data(NamedTuple):
    """A message of a stream; its arrays follow, back to back."""

    id: int
    fingerprint: int  # of the schema
    packed: bool  # compressed
    sequence: int
    iteration: int
    header_0: int
    header_1: int
    length: int


class Begun(NamedTuple):
    """The state of a stream's writer: the iteration of its claim, and whether it is gone."""

    id: int
    gone: int
    iteration: int | None


class Released(NamedTuple):
    """A message whose slot the reader of a stream has released."""

    id: int
    sequence: int


class Reading(NamedTuple):
    """Whether the reader of a stream is gone."""

    id: int
    gone: int


class PublishedEntry(NamedTuple):
    """The newest parameters of a store; their arrays follow, back to back."""

    id: int
    fingerprint: int
    number: int  # of the publication
    version: int
    iteration: int
    length: int


class Has(NamedTuple):
    """The newest parameters of a store that the workers of this host can read."""

    id: int
    number: int
    iteration: int


Entry = Data | Begun | Released | Reading | PublishedEntry | Has
Payload = bytes | memoryview
Parcel = tuple[Entry, Payload | None]
"""An entry to be sent, and its payload."""

Parts = list[memoryview]
"""The payload of a received entry, in one or more pieces."""

_KINDS: tuple[tuple[type[Entry], struct.Struct], ...] = (
    (Data, struct.Struct("<II?qqqqQ")),
    (Begun, struct.Struct("<IBq")),
    (Released, struct.Struct("<Iq")),
    (Reading, struct.Struct("<IB")),
    (PublishedEntry, struct.Struct("<IIqqqQ")),
    (Has, struct.Struct("<Iqq")),
)
_KIND_OF = {kind: (bytes([i]), form) for i, (kind, form) in enumerate(_KINDS)}


_SEAL_BYTES, _SHORT_BYTES = 33, 256  # CURVE's name, nonce, flags and seal; ZMTP's own head is longer for long frames


def alone_bytes() -> int:
    """The overhead of a message that is sent alone: its entry in a batch, and its release in another."""
    there, back = (_HEAD.size + 1 + _KIND_OF[kind][1].size + _SEAL_BYTES for kind in (Data, Released))
    return there + 9 + back + 2


def batches_bytes() -> int:
    """The part of it that messages sent together share: two batches, there and back."""
    return 2 * (_HEAD.size + _SEAL_BYTES) + 9 + 2


def encode(head: BatchHead, parcels: Sequence[Parcel]) -> list[Payload]:
    """The frames of a batch."""
    flags = head.fresh + 2 * head.asks + 4 * head.unpacks
    first: list[Payload] = [_HEAD.pack(_MAGIC, flags, len(parcels), head.epoch, head.number, head.heard)]
    inline: list[Payload] = []
    frames: list[Payload] = [b""]
    for entry, payload in parcels:
        mark, form = _KIND_OF[type(entry)]
        if isinstance(entry, Begun) and entry.iteration is None:
            entry = entry._replace(iteration=_NONE)
        first += (mark, form.pack(*entry))
        if payload is not None and len(payload) < INLINE_BYTES:
            inline.append(payload)
        elif payload is not None:
            whole = memoryview(payload)
            frames += (whole[at : at + FRAME_BYTES] for at in range(0, len(whole), FRAME_BYTES))
    frames[0] = b"".join((*first, *inline))
    return frames


def decode(frames: Sequence[memoryview]) -> tuple[BatchHead, list[tuple[Entry, Parts]]]:
    """The inverse of `encode`."""
    if not frames:
        raise Malformed("empty")
    first = frames[0]
    try:
        magic, flags, count, epoch, number, heard = _HEAD.unpack_from(first)
        if magic != _MAGIC or flags > 7 or number < 1 or heard < 0:
            raise Malformed("no courier's")
        entries: list[Entry] = []
        at = _HEAD.size
        for _ in range(count):
            kind, form = _KINDS[first[at]]
            entry = kind(*form.unpack_from(first, at + 1))
            if isinstance(entry, Begun) and entry.iteration == _NONE:
                entry = entry._replace(iteration=None)
            entries.append(entry)
            at += 1 + form.size
    except (struct.error, IndexError):
        raise Malformed("truncated") from None
    came: list[tuple[Entry, Parts]] = []
    others = iter(frames[1:])
    for entry in entries:
        parts: Parts = []
        if isinstance(entry, Data | PublishedEntry):
            if entry.length < INLINE_BYTES:
                parts.append(first[at : at + entry.length])
                at += entry.length
            else:
                parts += islice(others, -(-entry.length // FRAME_BYTES))
            if sum(len(part) for part in parts) != entry.length:
                raise Malformed("truncated")
        came.append((entry, parts))
    if at != len(first) or next(others, None) is not None:
        raise Malformed("too long")
    return BatchHead(epoch, number, heard, bool(flags & 1), bool(flags & 2), bool(flags & 4)), came


def wire_bytes(frames: Sequence[Payload]) -> int:
    """The size of frames on an encrypted connection."""
    sizes = [len(frame) + _SEAL_BYTES for frame in frames]
    return sum(size + (2 if size < _SHORT_BYTES else 9) for size in sizes)


def scatter(parts: Parts, targets: Sequence[memoryview]) -> None:
    """Copies received pieces to their targets."""
    if len(parts) == 1 == len(targets):
        targets[0][:] = parts[0]
        return
    rest, sources = memoryview(b""), iter(parts)
    for target in targets:
        at = 0
        while at < len(target):
            rest = rest or next(sources)
            size = min(len(rest), len(target) - at)
            target[at : at + size] = rest[:size]
            rest, at = rest[size:], at + size
