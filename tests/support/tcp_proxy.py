"""A network that can fail: what passes between two sockets goes through here, and can be cut, held up and heard."""

import contextlib
import selectors
import socket
import struct
import threading
import time
from typing import Self

_CHUNK = 1 << 16


class Proxy:
    """Stands in for the listener at `address`, which is `tcp://127.0.0.1:port`."""

    def __init__(self, address: str, bytes_per_s: float | None = None) -> None:
        self._target = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._bytes_per_s = bytes_per_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = bytearray()
        """Everything that passed, both ways."""
        self.connections = 0
        self.dead = False
        """While it is, nothing passes, and nobody is told."""
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cut(self) -> None:
        """Breaks every connection, with what was still on its way."""
        with self._lock:
            for one in self._pairs:
                with contextlib.suppress(OSError):
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            self._pairs.clear()

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                ready = [] if self.dead else self._ready()
                for one in ready:
                    self._pass(one)
            time.sleep(0 if ready else 2e-4)

    def _ready(self) -> list[socket.socket]:
        with selectors.DefaultSelector() as selector:
            for one in (self._listener, *self._pairs):
                selector.register(one, selectors.EVENT_READ)
            return [key.fileobj for key, _ in selector.select(0)]  # pyright: ignore

    def _pass(self, one: socket.socket) -> None:
        if one is self._listener:
            near, _ = one.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the target has gone, as it may before those that reconnect to it
                near.close()
                return
            self._pairs |= {near: far, far: near}
            self.connections += 1
            return
        other = self._pairs.get(one)
        if other is None:
            return
        try:
            data = one.recv(_CHUNK)
            other.sendall(data)
        except OSError:
            data = b""
        self.seen += data
        if self._bytes_per_s:
            time.sleep(len(data) / self._bytes_per_s)
        if not data:
            for each in (one, other):
                self._pairs.pop(each, None)
                each.close()

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self.cut()
        self._listener.close()
