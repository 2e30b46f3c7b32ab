"""The meaning of the two integers in front of a message, for each kind of stream.

A transport carries them as they are (`transport.stream.Header`). All counts begin with the run, so that a replacement
of a worker reads from the last header of a stream how far the worker before it was.
"""

from __future__ import annotations

from typing import NamedTuple

from runnel.transport.stream import Header


class UnrollHeader(NamedTuple):
    """The header of a stream of unrolls."""

    unroll: int  # its number, of one block
    version: int  # the updates of the parameters that it was begun with

    def pack(self) -> Header:
        if self.unroll < 0 or self.version < 0:
            raise ValueError(f"found {self}; an unroll's number and version are 0 or more")
        return self.unroll, self.version

    @classmethod
    def unpack(cls, header: Header) -> UnrollHeader:
        return cls(*header)


class StepHeader(NamedTuple):
    """The header of a stream of requests for actions, and of the stream of replies to them."""

    step: int  # of the environments that the request shows, and that its reply acts in

    def pack(self) -> Header:
        if self.step < 0:
            raise ValueError(f"found {self}; a step is 0 or more")
        return self.step, 0

    @classmethod
    def unpack(cls, header: Header) -> StepHeader:
        step, unused = header
        if unused:
            raise ValueError(f"found header {header}; that of a request or a reply ends with 0")
        return cls(step)


class ValueHeader(NamedTuple):
    """The header of a stream of the values of one node."""

    batches_left: int  # of its iteration, this one included; 0: the iteration has none, and the arrays have no value
    env_steps: int  # environment steps since the message before, of workers that step environments

    @property
    def has_value(self) -> bool:
        return self.batches_left > 0

    def pack(self) -> Header:
        if self.batches_left < 0 or self.env_steps < 0:
            raise ValueError(f"found {self}; batches and environment steps are 0 or more")
        return self.batches_left, self.env_steps

    @classmethod
    def unpack(cls, header: Header) -> ValueHeader:
        return cls(*header)


StreamHeader = UnrollHeader | StepHeader | ValueHeader


def last_unroll(header: Header | None) -> int:
    """The unroll that was sent last; -1 before the first."""
    return -1 if header is None else UnrollHeader.unpack(header).unroll


def last_step(header: Header | None) -> int:
    """The step whose request was sent last; -1 before the first."""
    return -1 if header is None else StepHeader.unpack(header).step
