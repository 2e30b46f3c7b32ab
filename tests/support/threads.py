"""Work in a thread whose failure is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable

from transport_peers import LIMIT_S


def threaded(work: Callable[[], None]) -> Callable[[], None]:
    """Starts `work` in a thread; the result waits for it and passes on what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "still at work"
        if raised:
            raise raised[0]

    return join
