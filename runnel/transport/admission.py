"""Decides which connections a listening socket keeps: those of known keys, and a few others at a time.

Any process can open a connection and send nothing. ZeroMQ closes it after a while; until then it holds a descriptor,
and a process without descriptors cannot write a checkpoint. So a thread watches each connection from its acceptance on:
beyond `MOST_WAITING` without a handshake, it closes the oldest of the address that has most of them. The same thread
checks keys (ZAP), so that a machine can join while the socket's owner is busy.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket as sockets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from threading import Lock, Thread
from time import monotonic
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

MOST_WAITING = 128
"""The largest number of connections without a handshake at a time; fewer if descriptors are short."""

MOST_ADDRESSES = 16
"""The number of addresses by which rejected connections are counted; further ones are `others`."""

MOST_EARLY = 64
"""The number of unknown keys that are remembered: a machine's agent may connect before its key has arrived by another
way."""

NO_HANDSHAKE, UNKNOWN_KEY = "no handshake", "unknown key"

_FAILED = zmq.Event.HANDSHAKE_FAILED_NO_DETAIL | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
_EVENTS = _FAILED | zmq.Event.ACCEPTED | zmq.Event.DISCONNECTED | zmq.Event.HANDSHAKE_SUCCEEDED
_EVENTS |= zmq.Event.MONITOR_STOPPED
_ZAP_VERSION = b"1.0"
_ZAP_ADDRESS = "inproc://zeromq.zap.01"

_monitors = count()


@dataclass
class Rejected:
    """Connections that were refused, by reason and by address."""

    reasons: Counter[str] = field(default_factory=Counter)
    addresses: Counter[str] = field(default_factory=Counter)

    def add(self, reason: str, address: str) -> str:
        """Counts a rejection, and returns the address that it was counted by."""
        self.reasons[reason] += 1
        known = address in self.addresses or len(self.addresses) < MOST_ADDRESSES
        counted = (address or "unknown") if known else "others"
        self.addresses[counted] += 1
        return counted

    def forgive(self, reason: str, addresses: Counter[str]) -> None:
        """Takes back rejections that were counted too early."""
        self.reasons -= Counter({reason: addresses.total()})
        self.addresses -= addresses

    def json(self) -> dict[str, dict[str, int]]:
        return {"reasons": dict(self.reasons), "addresses": dict(self.addresses)}


class _Waiting(NamedTuple):
    since: float
    peer: tuple[Any, ...]  # address and port


class Admission:
    """Watches the connections of one socket, in a thread. The socket must be watched before it is bound."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], handshake_s: float) -> None:
        self._names: dict[str, str] = {}  # public key: name
        self.rejected = Rejected()
        self.most = min(MOST_WAITING, max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
        self._handshake_s = handshake_s
        self._waiting: dict[int, _Waiting] = {}  # by descriptor
        self._shut: dict[int, _Waiting] = {}  # those that were closed for others, until ZeroMQ says that they are
        self._early: dict[str, Counter[str]] = {}  # by key that was refused: its addresses
        self._refused: Counter[str] = Counter()  # by address: keys refused, whose connections have yet to end
        self._made = 0  # handshakes of connections that wait; ZeroMQ does not say of which
        self._failed = False  # whether a handshake has just failed: the next event says which
        self._lock = Lock()
        self._thread: Thread | None = None
        # Held so that a connection can be closed when there is no descriptor left to do it with.
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._spare = os.dup(self._null)
        self._zap = context.socket(zmq.REP)
        self._zap.bind(_ZAP_ADDRESS)  # before the first connection: without it every key is admitted

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        self._monitor = monitor(socket, _EVENTS)
        self._thread = Thread(target=self._work, name="admission", daemon=True)
        self._thread.start()

    def admit(self, name: str, public: str) -> None:
        """Accepts connections of this key; earlier ones no longer count as rejected."""
        with self._lock:
            self._names[public] = name
            self.rejected.forgive(UNKNOWN_KEY, self._early.pop(public, Counter()))

    def expel(self, name: str) -> None:
        with self._lock:
            for public in [public for public, other in self._names.items() if other == name]:
                del self._names[public]

    def name(self, public: str) -> str | None:
        """The owner of a key."""
        return self._names.get(public)

    def settled(self, fd: int) -> None:
        """Records that a connection has sent a message, and so has completed its handshake."""
        with self._lock:
            self._forget(fd)

    def close(self) -> None:
        """Ends, after the socket's monitor was disabled, which ends the thread."""
        if self._thread is not None:
            self._thread.join()
        os.close(self._spare)
        os.close(self._null)

    # The thread

    def _work(self) -> None:
        poller = zmq.Poller()
        poller.register(self._zap, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._zap in ready:
                self._answer()
            # One at a time: keys are checked in between, however many connect.
            if self._monitor in ready and not self._note(recv_monitor_message(self._monitor)):
                return

    def _answer(self) -> None:
        """Whether the key of a new connection is known."""
        version, request, _domain, address, _identity, mechanism, *credentials = self._zap.recv_multipart()
        public = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" and len(credentials[0]) == 32 else ""
        with self._lock:
            known = version == _ZAP_VERSION and public in self._names
            if not known:
                self._refuse(public, address.decode(errors="replace"))
        status, text = (b"200", b"") if known else (b"400", b"unknown key")
        self._zap.send_multipart([_ZAP_VERSION, request, status, text, public.encode() if known else b"", b""])

    def _refuse(self, public: str, address: str) -> None:
        counted = self.rejected.add(UNKNOWN_KEY, address)
        self._refused[address] += 1
        if public in self._early or len(self._early) < MOST_EARLY:
            self._early.setdefault(public, Counter())[counted] += 1

    def _note(self, event: Mapping[str, Any]) -> bool:
        """Handles one event; returns whether there may be more."""
        kind, fd, now = event["event"], event["value"], monotonic()
        with self._lock:
            if kind == zmq.Event.ACCEPTED:
                self._shut.pop(fd, None)
                self._waiting[fd] = _Waiting(now, _peer(fd))
                if len(self._waiting) > self.most:
                    self._close_one(now)
            elif kind == zmq.Event.DISCONNECTED:
                waited, shut = self._waiting.pop(fd, None), self._shut.pop(fd, None)
                left = waited or shut
                if self._failed or (left is not None and not self._made):
                    self._reject(str(left.peer[0]) if left is not None and left.peer else "")
                elif waited is not None:
                    self._made -= 1
            elif kind == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._made += 1
        self._failed = bool(kind & _FAILED)
        return kind != zmq.Event.MONITOR_STOPPED

    def _reject(self, address: str) -> None:
        """Records a connection that ended without a handshake; one whose key was refused is counted already."""
        refused = address or next(iter(+self._refused), "")  # one that has ended too soon to be asked has none
        if self._refused[refused] > 0:
            self._refused[refused] -= 1
        else:
            self.rejected.add(NO_HANDSHAKE, address)

    def _forget(self, fd: int) -> None:
        """Records a connection that has completed its handshake."""
        if self._waiting.pop(fd, None) is not None:
            self._made = max(0, self._made - 1)

    def _close_one(self, now: float) -> None:
        """Closes the oldest connection of the address with most; those past the handshake's time limit have completed
        it."""
        for fd in [fd for fd, each in self._waiting.items() if now > each.since + self._handshake_s + 1.0]:
            self._forget(fd)
        if len(self._waiting) <= self.most:
            return
        most, _ = Counter(each.peer[:1] for each in self._waiting.values()).most_common(1)[0]
        fd, oldest = next((fd, each) for fd, each in self._waiting.items() if each.peer[:1] == most)
        self._shut[fd] = self._waiting.pop(fd)
        # ZeroMQ may have closed the descriptor by now, and another thread may have opened it: a duplicate is checked
        # before it is shut down, and cannot change in between.
        with contextlib.suppress(OSError):
            os.dup2(fd, self._spare, inheritable=False)
            if _peer(self._spare) == oldest.peer:
                _shut_down(self._spare)
        os.dup2(self._null, self._spare, inheritable=False)


def monitor(socket: zmq.Socket[bytes], events: int) -> zmq.Socket[bytes]:
    """A socket that receives the `events` of another."""
    address = f"inproc://monitor-{next(_monitors)}"
    socket.monitor(address, events)
    end = socket.context.socket(zmq.PAIR)
    end.rcvhwm = 0  # with a limit, enough connections would block the socket
    end.connect(address)
    return end


def _peer(fd: int) -> tuple[Any, ...]:
    """The address and port of a connection's other end; empty if it has been closed."""
    try:
        end = sockets.socket(fileno=fd)
    except OSError:
        return ()
    try:
        return tuple(end.getpeername()[:2])
    except OSError:
        return ()
    finally:
        end.detach()


def _shut_down(fd: int) -> None:
    end = sockets.socket(fileno=fd)
    try:
        end.shutdown(sockets.SHUT_RDWR)
    finally:
        end.detach()
