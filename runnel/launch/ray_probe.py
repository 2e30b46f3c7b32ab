"""Whether the head of a Ray cluster answers at an address. Ray itself would try for a minute before it reports."""

from __future__ import annotations

import os
import socket

from runnel.errors import UserError

PROBE_S = 5.0
"""How long a head may take to answer."""

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The first bytes of a gRPC client; the server answers with its settings."""

_SETTINGS = b"\x04"


def probe(address: str) -> None:
    """Raises `UserError` if nothing answers, or if what answers is not Ray."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"found the address '{address}', expected HOST:PORT of a cluster's head, as in 10.0.0.1:6379")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_S) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"no Ray head answers at {address} ({why}); start one with `ray start --head --port=6379`, and see "
            "`ray status` there"
        ) from None
    if answer[3:4] != _SETTINGS and os.environ.get("RAY_USE_TLS", "0") == "0":
        raise UserError(f"what answers at {address} is not the head of a Ray cluster; see `ray status` there")


def answers(address: str) -> bool:
    """Whether the head of a cluster answers."""
    try:
        probe(address)
    except UserError:
        return False
    return True
