"""A connection to the live page, which is closed when it is idle."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 10.0
"""How long a connection may stay without a whole request, or with an answer of which nothing is taken."""


class Connection(H11Protocol):
    """Closed where its client does nothing. uvicorn itself waits for a first request, and for a reader, without end."""

    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch(math.inf)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch(math.inf)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _watch(self, left: float) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = self.loop.call_later(REQUEST_S, self._look, left)

    def _look(self, before: float) -> None:
        """`before`: bytes that the client had yet to take at the last look."""
        answering = self.cycle is not None and not self.cycle.response_complete
        left = self.transport.get_write_buffer_size()
        if (answering and not left) or 0 < left < before:
            self._watch(left or math.inf)
        else:
            self.transport.abort()
