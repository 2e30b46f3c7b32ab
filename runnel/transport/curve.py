"""Encrypted sockets between hosts that admit only known keys: a door that listens, and calls that connect to it.

Both ends are authenticated (CURVE): a door knows the public keys of its callers, a caller knows the door's. Messages in
transit are lost when a connection breaks; a caller that must not lose any numbers its messages, as `courier` does.
Neither end ever waits, and each belongs to one thread.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from runnel.errors import UserError
from runnel.transport.admission import Admission, Rejected, monitor

MOST_BYTES = 2**20
"""The longest frame that is accepted by default."""

QUEUED = 1000
"""The number of messages that may wait in a socket for one peer."""

HEARTBEAT_MS, SILENCE_MS = 2_000, 10_000
_CONNECT_MS, _HANDSHAKE_MS, _RECONNECT_MS, _RECONNECT_MOST_MS = 3_000, 10_000, 50, 1_000
_IDS_KEPT = 8
_RENEW_S, _RENEW_MOST_S = 0.5, 4.0


class Keys(NamedTuple):
    """A key pair as text. Only the public one may travel."""

    public: str
    secret: str


def new_keys() -> Keys:
    """A new key pair."""
    public, secret = zmq.curve_keypair()
    return Keys(public.decode(), secret.decode())


class Door:
    """Listens at one address of this host and accepts messages of admitted keys only.

    A peer is identified by the key of its connection, never by the content of its messages. `Admission` checks keys,
    and closes connections that do not complete a handshake, in its own thread.
    """

    def __init__(self, keys: Keys, interface: str = "127.0.0.1", most_bytes: int = MOST_BYTES) -> None:
        host = one_address(interface)
        self.counts: Counter[str] = Counter()
        """Messages that were dropped, and why."""
        self.context = zmq.Context()
        self._ids: dict[str, list[bytes]] = {}  # name: what its connections are called, the newest last
        self._admission = Admission(self.context, _HANDSHAKE_MS / 1000)
        self.socket = _socket(self.context, zmq.ROUTER, keys, most_bytes, ":" in host)
        try:
            self.socket.curve_server = True
            self.socket.router_mandatory = True  # sending to an absent peer fails, rather than dropping the message
            self._admission.watch(self.socket)
            try:
                self.socket.bind(f"tcp://{host}:*")
            except zmq.ZMQError as error:
                raise UserError(f"cannot listen at {interface} ({error}); give an address of this machine") from error
            self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except BaseException:
            self.close()
            raise
        self.sockets = (self.socket,)
        """The sockets to poll: call `receive` when it is readable."""

    @property
    def rejected(self) -> Rejected:
        """Connections that were refused."""
        return self._admission.rejected

    def admit(self, name: str, public: str) -> None:
        """Accepts messages of this key from now on, as those of `name`; an earlier key of that name is dropped."""
        if len(z85.decode(public.encode())) != 32:
            raise ValueError(f"{public!r} is not a public key")
        self.expel(name)
        self._admission.admit(name, public)

    def expel(self, name: str) -> None:
        """Accepts no more messages of `name`. Later ones are dropped and counted."""
        self._admission.expel(name)
        self._ids.pop(name, None)

    def receive(self) -> tuple[str, list[memoryview]] | None:
        """A message and the name of its sender; None if there is none now."""
        while _has_message(self.socket):
            first, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            name = self._admission.name(str(first.get("User-Id")))
            if name is None:
                self.counts["expelled"] += 1
                continue
            ids, known = bytes(first.buffer), self._ids.setdefault(name, [])
            if ids not in known:
                known.append(ids)
                del known[:-_IDS_KEPT]
                self._admission.settled(int(first.get(zmq.SRCFD)))
            return name, [frame.buffer for frame in frames]
        return None

    def send(self, name: str, frames: Sequence[Any]) -> bool:
        """Sends to `name`, over its newest connection; False if it has none or does not keep up."""
        known = self._ids.get(name)
        while known:
            try:
                self.socket.send_multipart([known[-1], *frames], zmq.NOBLOCK, copy=True)
                return True
            except zmq.Again:
                return False
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                known.pop()  # that connection is over
        return False

    def close(self) -> None:
        self.socket.disable_monitor()
        self._admission.close()
        self.context.destroy(linger=0)


class Call:
    """Connects to a door, and again whenever the connection breaks."""

    def __init__(
        self,
        keys: Keys,
        address: str,
        server_public: str,
        most_bytes: int = MOST_BYTES,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
    ) -> None:
        self._context = context or zmq.Context()
        self._own_context = context is None
        self.address = address
        self.connections = 0
        """The number of connections so far. When it has grown, earlier messages may be lost."""
        self._connected, self._patience_s = False, _RENEW_S
        self._renew_at = monotonic() + _RENEW_S
        self.socket = _socket(self._context, zmq.DEALER, keys, most_bytes, "[" in address)
        self.socket.curve_serverkey = server_public.encode()
        self.socket.immediate = True  # nothing is queued for a connection that may never be made
        self._monitor = monitor(self.socket, zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        self.socket.connect(address)
        self.sockets = (self.socket, self._monitor)
        """The sockets to poll: call `connected` when the second is readable."""

    def connected(self) -> bool:
        """Whether there is a connection now. Call it regularly: it also renews a lost connection."""
        while _has_message(self._monitor):
            self._connected = recv_monitor_message(self._monitor)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED
            self.connections += self._connected
            self._patience_s = _RENEW_S
            self._renew_at = monotonic() + _RENEW_S
        if not self._connected and monotonic() > self._renew_at:
            # The socket tries again by itself, but gives up for good on a door that does not know its key yet, or when
            # something else answered. Ever more slowly, or one that is merely slow would never be reached.
            self._patience_s = min(2 * self._patience_s, _RENEW_MOST_S)
            self._renew_at = monotonic() + self._patience_s
            with suppress(zmq.ZMQError):
                self.socket.disconnect(self.address)
            self.socket.connect(self.address)
        return self._connected

    def send(self, frames: Sequence[Any], copy: bool = True) -> bool:
        """Sends; False if there is no connection now or the door does not keep up."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=copy)
        except zmq.Again:
            self.connected()
            return False
        return True

    def receive(self) -> list[memoryview] | None:
        """A message from the door; None if there is none now."""
        if not _has_message(self.socket):
            self.connected()
            return None
        return [frame.buffer for frame in self.socket.recv_multipart(zmq.NOBLOCK, copy=False)]

    def close(self) -> None:
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)
        if self._own_context:
            self._context.destroy(linger=0)


def one_address(interface: str) -> str:
    """`interface` in the form for an address, refused unless it is one single address."""
    found = None
    with suppress(ValueError):
        found = ipaddress.ip_address(interface)
    plain = getattr(found, "ipv4_mapped", None) or found
    if plain is None or plain.is_unspecified or plain.is_multicast:
        raise UserError(
            f"found {interface!r} as the address to listen at; give one address of this machine, such as 127.0.0.1 or "
            "its address in the cluster: nothing listens on all of them"
        )
    return f"[{plain}]" if plain.version == 6 else str(plain)


def _has_message(socket: zmq.Socket[bytes], _events: int = int(zmq.EVENTS), _in: int = int(zmq.POLLIN)) -> bool:
    return bool(int(socket.getsockopt(_events)) & _in)


def _socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, keys: Keys, most_bytes: int, ipv6: bool
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.linger = 0
    socket.ipv6 = ipv6
    socket.maxmsgsize = most_bytes
    socket.sndhwm = socket.rcvhwm = QUEUED
    socket.handshake_ivl = _HANDSHAKE_MS
    # A network that was cut gives no error: a peer that is silent for too long counts as gone, and is called again.
    socket.tcp_keepalive = 1
    socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, SILENCE_MS
    socket.connect_timeout = _CONNECT_MS
    socket.reconnect_ivl, socket.reconnect_ivl_max = _RECONNECT_MS, _RECONNECT_MOST_MS
    socket.curve_publickey, socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
    return socket
