"""A ring of slots in plain memory, with one writer and one reader: the basis of both memory transports.

Each end keeps its own counts and publishes them as single words:

    committed                messages the writer has handed over
    order[n % capacity]      the slot of message n, written before `committed` counts it
    received                 messages the reader has taken
    released[slot]           1 + the last message of this slot that the reader released
    headers[n % (cap. + 1)]  the header of message n, also once its slot is used again: a replacement of the writer
                             reads there what was sent last

A slot is free when its last committed message was released, so slots become free in the order of their release. `order`
has one entry per slot, which is enough: if message n were still unread when n + capacity is committed, all in between
would be unread too and no slot free. Words only grow, so an old value is merely late, never wrong; and the state of an
end can be rebuilt from them, which is how a replacement takes over from an end that was killed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from runnel.transport.bell import Bell
from runnel.transport.memory import ALIGNMENT, LINE_WORDS, aligned, arrays_at, arrays_bytes, order
from runnel.transport.stream import NO_HEADER, Closed, End, Header, Message, Schema, fingerprint

# Words at the head of the ring: written once by its creator,
_HEAD = 3  # what `SlotLayout.constants` says
# by the writer,
_COMMITTED, BEGUN, _WRITER_CLOSED = range(LINE_WORDS, LINE_WORDS + 3)
# by the reader,
_RECEIVED, _READER_CLOSED = range(2 * LINE_WORDS, 2 * LINE_WORDS + 2)
# by the supervisor of both.
_WRITER_LOST, _READER_LOST = range(3 * LINE_WORDS, 3 * LINE_WORDS + 2)
ORDER = 4 * LINE_WORDS

_GONE = {"writer": (_WRITER_CLOSED, _WRITER_LOST), "reader": (_READER_CLOSED, _READER_LOST)}

# Words in front of a slot's arrays, written by the writer.
_SEQUENCE, _ITERATION, _HEADER = range(3)
_HEADER_WORDS = 2
_PREFIX_WORDS = _HEADER + _HEADER_WORDS

_MAGIC_VALUE = 0x72756E6E656C0002
_NONE = -(2**63)


class SlotLayout:
    """The layout of a ring of `slots` slots in memory."""

    def __init__(self, schema: Schema, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"a stream of {slots} slots can carry nothing; it needs at least 1")
        self.schema = schema
        self.capacity = slots
        self.released = ORDER + aligned(slots, LINE_WORDS)
        self.headers = self.released + aligned(slots, LINE_WORDS)
        self._first = 8 * (self.headers + aligned(_HEADER_WORDS * (slots + 1), LINE_WORDS))
        self._slot_bytes = ALIGNMENT + arrays_bytes(schema)
        self.size = self._first + slots * self._slot_bytes

    def prefix(self, slot: int) -> int:
        """The index of the first word of `slot`."""
        return (self._first + slot * self._slot_bytes) // 8

    def slots(self, buffer: Any) -> list[list[np.ndarray]]:
        """The arrays of every slot."""
        firsts = (8 * self.prefix(slot) + ALIGNMENT for slot in range(self.capacity))
        return [arrays_at(buffer, self.schema, first) for first in firsts]

    def constants(self) -> tuple[int, int, int]:
        """The words at the head of a ring with this layout."""
        return _MAGIC_VALUE, self.capacity, fingerprint(self.schema)


class Ring:
    """A ring as its creator holds it: creates its ends, counts its messages, and records that an end has died.

    Its memory is `buffer`; `words` are the counters in it, at the indices of `layout`.
    """

    def __init__(self, buffer: Any, layout: SlotLayout, new: bool) -> None:
        self.buffer = buffer
        self.layout = layout
        self.words = memoryview(buffer).cast("B").cast("q")
        self.schema = layout.schema
        self.capacity = layout.capacity
        if new:
            self._begin()
            for word, value in enumerate(layout.constants()):
                self.words[word] = value
        elif (found := tuple(self.words[:_HEAD])) != layout.constants():
            raise ValueError(f"this memory is not a ring of this schema and {self.capacity} slots; its head: {found}")

    def writer(self, own_bell: Bell, reader_bell: Bell) -> RingWriter:
        """The writing end. `own_bell` is rung when a slot becomes free; `reader_bell` is the one to ring."""
        return RingWriter(self.buffer, self.words, self.layout, own_bell, reader_bell)

    def reader(self, own_bell: Bell, writer_bell: Bell) -> RingReader:
        """The reading end. `own_bell` is rung when a message arrives; `writer_bell` is the one to ring."""
        return RingReader(self.buffer, self.words, self.layout, own_bell, writer_bell)

    def committed(self) -> int:
        """The number of messages ever committed."""
        return self.words[_COMMITTED]

    def pending(self) -> int:
        """The number of messages that wait to be received."""
        received = self.words[_RECEIVED]
        order()
        return min(self.words[_COMMITTED] - received, self.capacity)

    def lost(self, end: End) -> None:
        """Records that the worker at `end` has died. The other end's waits raise Closed, once its bell is rung."""
        self.words[_WRITER_LOST if end == "writer" else _READER_LOST] = 1

    def relay(self, own_bell: Bell, reader_bell: Bell) -> Relay:
        """The writing end for a courier, which passes on messages from another host."""
        return Relay(self.buffer, self.words, self.layout, own_bell, reader_bell)

    def gone(self, end: End) -> int:
        """Whether `end` has closed (1), is lost (2), both or neither. Everything it did before is visible after this
        call."""
        closed, lost = _GONE[end]
        found = (1 if self.words[closed] else 0) + (2 if self.words[lost] else 0)
        order()
        return found

    def follow(self, end: End, gone: int) -> None:
        """Sets the state of `end`, whose worker is on another host, to the `gone` of its ring there."""
        order()  # its last commit or release before its end
        for word, bit in zip(_GONE[end], (1, 2), strict=True):
            self.words[word] = 1 if gone & bit else 0

    def reset_end(self, end: End) -> None:
        """Prepares `end`, whose worker is gone, for a replacement.

        A new writer starts without the claim of the dead one. A new reader receives again, in order, the messages that
        the dead one had received and not released.
        """
        if end == "writer":
            self.words[BEGUN] = _NONE
            self.words[_WRITER_CLOSED] = 0
            order()
            self.words[_WRITER_LOST] = 0
        else:
            self.words[_READER_CLOSED] = 0
            order()
            self.words[_READER_LOST] = 0

    def clear(self) -> None:
        """Resets the ring. There must be no worker at either end; existing ends must not be used afterwards."""
        for word in range(_COMMITTED, self.layout.prefix(0)):
            self.words[word] = 0
        self._begin()

    def _begin(self) -> None:
        self.words[BEGUN] = _NONE
        for slot in range(self.capacity):
            self.words[self.layout.prefix(slot) + _SEQUENCE] = -1

    def close(self) -> None:
        """Releases the memory, which is freed with the last end or array that views it. Counts stay as they were."""
        self.buffer = bytearray(memoryview(self.buffer).cast("B")[: 8 * ORDER])
        self.words = memoryview(self.buffer).cast("q")


class RingWriter:
    """The writing end of a ring: a `stream.Writer`."""

    def __init__(
        self, buffer: Any, words: memoryview[int], layout: SlotLayout, own_bell: Bell, reader_bell: Bell
    ) -> None:
        self.slots = layout.slots(buffer)
        self.words = words
        self._capacity = layout.capacity
        self._prefixes = [layout.prefix(slot) for slot in range(layout.capacity)]
        self._released, self._headers = layout.released, layout.headers
        self._bell = own_bell
        self._reader_bell = reader_bell
        self._claimed: int | None = None
        self._iteration = 0
        self._committed = words[_COMMITTED]
        # What `released` says of each slot when it is free.
        # A sequence beyond `committed` is of a writer killed before its commit: its slot was free, and still is.
        last = [words[prefix + _SEQUENCE] for prefix in self._prefixes]
        given_back = words[layout.released : layout.released + layout.capacity].tolist()
        self._free_at = [n + 1 if n < self._committed else r for n, r in zip(last, given_back, strict=True)]

    def claim(self, iteration: int, timeout_s: float) -> int | None:
        self._iteration = iteration
        return self._bell.wait(self._claim, timeout_s)

    def _claim(self) -> int | None:
        words = self.words
        if words[_READER_CLOSED] or words[_READER_LOST] or words[_WRITER_CLOSED]:
            raise self._closed()
        slot = self._claimed if self._claimed is not None else self._next_free()
        if slot is not None:
            self._claimed = slot
            words[BEGUN] = self._iteration
            order()  # what the reader read of the slot was read before it is overwritten
        return slot

    def _next_free(self) -> int | None:
        # The first of them, not the one that rested longest: it is likelier to be in a cache.
        words, released = self.words, self._released
        for slot, free_at in enumerate(self._free_at):
            if words[released + slot] == free_at:
                return slot
        return None

    def _closed(self) -> Closed:
        if self.words[_WRITER_CLOSED]:
            return Closed("this end of the stream was closed")
        if self.words[_READER_CLOSED]:
            return Closed("the reader closed the stream")
        return Closed("the reader of the stream is lost", lost=True)

    def free(self) -> bool:
        words = self.words
        gone = words[_READER_CLOSED] or words[_READER_LOST] or words[_WRITER_CLOSED]
        return bool(gone) or self._claimed is not None or self._next_free() is not None

    def commit(self, header: Header = NO_HEADER) -> None:
        slot = self._claimed
        if slot is None:
            raise ValueError("there is no claimed slot to commit: claim one first")
        self._claimed = None
        self._hand_over(slot, header, _NONE)

    def _hand_over(self, slot: int, header: Header, begun: int) -> None:
        words, prefix, sequence = self.words, self._prefixes[slot], self._committed
        kept = self._headers + _HEADER_WORDS * (sequence % (self._capacity + 1))
        words[prefix + _SEQUENCE] = sequence
        words[prefix + _ITERATION] = self._iteration
        words[prefix + _HEADER] = words[kept] = header[0]
        words[prefix + _HEADER + 1] = words[kept + 1] = header[1]
        words[ORDER + sequence % self._capacity] = slot
        order()  # everything of the message is there before it counts
        words[_COMMITTED] = sequence + 1
        order()  # it counts before it is no longer begun
        words[BEGUN] = begun
        self._committed = self._free_at[slot] = sequence + 1
        self._reader_bell.ring()

    def last_header(self) -> Header | None:
        if not self._committed:
            return None
        kept = self._headers + _HEADER_WORDS * ((self._committed - 1) % (self._capacity + 1))
        return self.words[kept], self.words[kept + 1]

    def close(self) -> None:
        if not self.words[_WRITER_CLOSED]:
            order()  # the last commit before the end
            self.words[_WRITER_CLOSED] = 1
            self.words[BEGUN] = _NONE
            self._claimed = None
            self._reader_bell.ring()


class Relay(RingWriter):
    """The writing end of a ring whose messages were written, and begun, on another host. It never claims: a message
    that has arrived is written whether or not there is a reader now, because there are as many slots as at the source.
    """

    def committed(self) -> int:
        """The number of the next message."""
        return self._committed

    def room(self) -> int | None:
        """A slot to fill; None if all are taken."""
        slot = self._next_free()
        order()  # what the reader read of the slot was read before it is overwritten
        return slot

    def pass_on(self, slot: int, iteration: int, header: Header, begun: int | None) -> None:
        """Hands a filled slot to the reader; `begun` is the iteration that the source may have begun by now."""
        self._iteration = iteration
        self._hand_over(slot, header, _NONE if begun is None else begun)

    def announce(self, begun: int | None) -> None:
        """Publishes the iteration that the source may have begun, before it can be committed."""
        self.words[BEGUN] = _NONE if begun is None else begun
        order()

    def unreleased(self) -> set[int]:
        """The messages that the reader has not released."""
        words, released = self.words, self._released
        return {end - 1 for slot, end in enumerate(self._free_at) if words[released + slot] != end}


class RingReader:
    """The reading end of a ring: a `stream.Reader`."""

    def __init__(
        self, buffer: Any, words: memoryview[int], layout: SlotLayout, own_bell: Bell, writer_bell: Bell
    ) -> None:
        self._arrays = layout.slots(buffer)
        self.words = words
        self._capacity = layout.capacity
        self._prefixes = [layout.prefix(slot) for slot in range(layout.capacity)]
        self._released = layout.released
        self._bell = own_bell
        self._writer_bell = writer_bell
        self._held: dict[int, int] = {}  # slot: the sequence of the message it holds
        self._received = words[_RECEIVED]
        # What an earlier reader received and did not release. The writer may be busy meanwhile, but not in these
        # slots; in others it writes sequences that were not received.
        last = [(words[prefix + _SEQUENCE], slot) for slot, prefix in enumerate(self._prefixes)]
        self._again = sorted(
            (n, slot) for n, slot in last if n < self._received and words[layout.released + slot] != n + 1
        )

    def receive(self, timeout_s: float) -> Message | None:
        return self._bell.wait(self._next, timeout_s)

    def _next(self) -> Message | None:
        words, sequence = self.words, self._received
        if words[_READER_CLOSED]:
            raise Closed("this end of the stream was closed")
        if self._again:
            return self._message(*self._again.pop(0))
        if words[_COMMITTED] == sequence:
            if not self._over():
                return None
            if words[_WRITER_CLOSED]:
                raise Closed("the writer closed the stream")
            raise Closed("the writer of the stream is lost", lost=True)
        order()  # the message is read after the count that says it is there
        slot = words[ORDER + sequence % self._capacity]
        if not (0 <= slot < self._capacity and slot not in self._held):
            raise RuntimeError(f"the stream is damaged: message {sequence} is said to be in slot {slot}")
        message = self._message(sequence, slot)
        self._received = words[_RECEIVED] = sequence + 1
        return message

    def _message(self, sequence: int, slot: int) -> Message:
        prefix = self._prefixes[slot]
        found, iteration, first, second = self.words[prefix : prefix + _PREFIX_WORDS]
        if found != sequence:
            raise RuntimeError(f"the stream is damaged: slot {slot} holds message {found} in place of {sequence}")
        self._held[slot] = sequence
        return Message(sequence, iteration, (first, second), slot, self._arrays[slot])

    def _over(self) -> bool:
        """Whether the writer is gone and everything it committed was received."""
        words = self.words
        if not (words[_WRITER_CLOSED] or words[_WRITER_LOST]):
            return False
        order()  # its last commit precedes its end, so both are visible now
        return words[_COMMITTED] == self._received and not self._again

    def peek(self) -> bool:
        words = self.words
        return bool(self._again or words[_COMMITTED] != self._received or words[_READER_CLOSED] or self._over())

    def release(self, message: Message) -> None:
        if self._held.get(message.slot) != message.sequence:
            raise ValueError(f"message {message.sequence} is not held: it was released before, or is another stream's")
        del self._held[message.slot]
        order()  # all reads of the slot happen before it may be filled again
        self.words[self._released + message.slot] = message.sequence + 1
        self._writer_bell.ring()

    def begun(self) -> int | None:
        words = self.words
        iteration = words[BEGUN]
        if iteration == _NONE or words[_WRITER_CLOSED] or words[_WRITER_LOST]:
            iteration = None
        order()  # so that `pending`, asked next, counts what was committed before this was seen
        return iteration

    def pending(self) -> int:
        return len(self._again) + self.words[_COMMITTED] - self._received

    def close(self) -> None:
        if not self.words[_READER_CLOSED]:
            self.words[_READER_CLOSED] = 1
            self._writer_bell.ring()
