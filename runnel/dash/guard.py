"""Who may ask what of the page's server: names of hosts, origins and the token. Data in, a refusal out.

A browser lets any page that its user visits send requests to this server; what protects it:

- `Host` must be an address or a name of this machine. A stranger's name that is made to mean this machine
  (DNS rebinding) would otherwise make the stranger's page one of ours.
- `Origin`, where there is one, must be that host: no other page's requests are answered.
- The token, which is no cookie and so is in no request but our own page's: for all that changes something, and off
  loopback for all that reads.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""

NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Guard:
    """What a server requires of requests."""

    host: str  # that it listens on
    token: str

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """The status and the words with which a request is refused; None if it is answered. Names are in lower case."""
        named = host_of(headers.get("host", ""))
        if named is None or not self._is_ours(named):
            return 421, "found another host in the request; open the address that `runnel dash` printed"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            return 403, "found a request of another page"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "found a request of another page"
        reads = method in ("GET", "HEAD")
        if reads and (self.loopback or not path.startswith("/api/")):
            return None  # the page itself has nothing of any run
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode()):
            return None
        return 401, "found no valid token; open the address that `runnel dash` printed, with its token"

    def _is_ours(self, named: str) -> bool:
        if named in NAMES or named == self.host.lower():
            return True
        if self.loopback:
            return False
        return is_address(named) or named in (socket.gethostname().lower(), socket.getfqdn().lower())


def host_of(header: str) -> str | None:
    """The host of a Host header without its port; None if it is not one."""
    header = header.strip().lower()
    if header.startswith("["):
        host, bracket, port = header[1:].partition("]")
        port = port.removeprefix(":")
    else:
        host, bracket, port = header.partition(":")
    if not host or (port and not port.isdigit()) or "@" in host or (header.startswith("[") and not bracket):
        return None
    return host


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
