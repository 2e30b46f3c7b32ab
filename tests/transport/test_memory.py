"""Memory that two processes share: what orders accesses to it."""

from __future__ import annotations

import threading

import pytest

from runnel.transport import memory


def test_a_fence_releases_a_lock_that_no_other_thread_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a thread or signal handler that runs in the middle of a fence passes its own, and no fence ever waits."""
    done: list[tuple[int, str]] = []  # by lock
    locks: list[WatchedLock] = []

    class WatchedLock:
        def __init__(self) -> None:
            self.lock, self.number = threading.Lock(), len(locks)
            locks.append(self)

        def acquire(self) -> None:
            assert self.lock.acquire(blocking=False), "a fence waits for another"
            done.append((self.number, "acquire"))

        def release(self) -> None:
            if len(locks) == 1:
                memory.fence()  # as from a signal handler
            self.lock.release()
            done.append((self.number, "release"))

    monkeypatch.setattr(memory, "allocate_lock", WatchedLock)
    memory.fence()
    whole = ["acquire", "release", "acquire"]
    assert [what for number, what in done if number == 0] == whole
    assert done[1:4] == [(1, what) for what in whole]
