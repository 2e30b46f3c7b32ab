"""Serves a run's newest numbers to Prometheus, over HTTP, while the run lasts.

    with metrics_server.serving(port=9100):  # entered by `train` and others, before anything starts
        ...
        metrics_server.report(record, usage)  # deep inside, whenever there are new numbers

As with `startup`, the first caller that enters serves, and code below reports whether or not a server runs. Nothing
of it is in a run's configuration: a port is opened only where this command, or this call, asks for it.
"""

from __future__ import annotations

import contextlib
import contextvars
import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from runnel.config.run_config import out_of_range
from runnel.errors import NotInstalled, UserError
from runnel.recording.files import clean
from runnel.reporting.live_view import forgiving
from runnel.reporting.prometheus import ScrapedRun, families
from runnel.runtime.usage import UsageReport

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DASHBOARD: Final = Path(__file__).with_name("grafana.json")
"""Shows every run that a Prometheus scrapes. It is served beside the metrics, where a user finds it."""

LOOPBACK: Final = "127.0.0.1"
MOST_REQUESTS: Final = 16
"""Answered at a time; others are turned away, so that no number of clients takes the run's descriptors and threads."""

REQUEST_S: Final = 5.0
"""How long a client may take in all, to send a request and to take the answer: however slowly, it holds no place."""


class MetricsServer:
    """A port on which the newest numbers of a run are read. Its threads end with it."""

    def __init__(self, port: int, address: str):
        self.newest = ScrapedRun()
        self._server = _bound(port, address, self)
        self.address, self.port = self._server.server_address[:2]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host = f"[{self.address}]" if ":" in str(self.address) else self.address
        return f"http://{host}:{self.port}/metrics"

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every request, in its thread."""
        return families(self.newest)

    def close(self) -> None:
        """The port is free afterwards, even where a process that an environment forked still has its descriptor."""
        self._server.shutdown()
        with contextlib.suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is the run's."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, family: socket.AddressFamily, place: tuple[str, int]):
        self.address_family = family
        self._free = threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # not that of HTTPServer, which asks the network for this machine's name
        self.server_name, self.server_port = "metrics", int(self.server_address[1])
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            return self.shutdown_request(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(REQUEST_S, _shut, (request,))
        deadline.daemon = True
        try:
            deadline.start()
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is nothing to report."""


def _shut(request: socket.socket) -> None:
    """Wakes the thread that reads from a client, or writes to it. It may be done just now."""
    with contextlib.suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


def _bound(port: int, address: str, collector: MetricsServer) -> _Server:
    from prometheus_client import CollectorRegistry, make_wsgi_app

    given = f"metrics_port={port}: found port {port} of {address}"
    keywords = ("metrics_port", "metrics_address")
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        server = _Server(found[0], (str(found[4][0]), port))
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"metrics_address={address}: found no such address, expected one of this machine, such as 127.0.0.1",
            keywords=keywords,
            page="prometheus#from-another-machine",
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(
            f"{given}, which cannot be opened ({reason}), expected a free one of this machine; choose another "
            "metrics_port=, or 0 for any that is free",
            keywords=keywords,
            page="prometheus#from-another-machine",
        ) from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)  # type: ignore[arg-type]  # it has `collect`, all that a registry calls
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/grafana.json":
            return metrics(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [DASHBOARD.read_bytes()]

    server.set_app(app)
    return server


_PRESENT: contextvars.ContextVar[MetricsServer | None] = contextvars.ContextVar("metrics_server", default=None)


def check(port: int | None, address: str, quiet: bool = False) -> None:
    """Refuses, before anything starts, what cannot be served."""
    keywords = ("metrics_port", "metrics_address", "quiet")
    expected = None if port is None or type(port) is int else "a whole number"
    expected = expected or out_of_range("metrics_port", port)
    if expected:
        raise UserError(f"metrics_port={port!r}: found {port!r}, expected {expected}", keywords=keywords)
    if port is None:
        if address != LOOPBACK:
            raise UserError(
                f"metrics_address={address}: found it without metrics_port=, expected the port to open there",
                keywords=keywords,
            )
        return
    if find_spec("prometheus_client") is None:
        raise NotInstalled("metrics_port=", "prometheus_client", "prometheus", keywords=keywords)
    if port == 0 and quiet:
        raise UserError(
            "metrics_port=0: found it with quiet=, which does not print the port that is chosen; expected a port",
            keywords=keywords,
        )


@contextlib.contextmanager
def serving(port: int | None, address: str = LOOPBACK, quiet: bool = False) -> Iterator[None]:
    """Opens the port, says where, and closes it at the end. Without a port nothing is served."""
    check(port, address, quiet)
    server = None if port is None else MetricsServer(port, address)
    token = _PRESENT.set(server)
    try:
        if server is not None and not quiet and sys.stdout is not None:
            open_to = "" if _is_loopback(str(server.address)) else ", to anyone who reaches that address"
            print(f"metrics for Prometheus: {server.url}{open_to}", file=forgiving(sys.stdout), flush=True)
        yield
    finally:
        _PRESENT.reset(token)
        if server is not None:
            server.close()


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def describe(info: Mapping[str, Any], target_env_steps: int) -> None:
    """What the run is that reports from here on."""
    server = _PRESENT.get()
    if server is not None:
        labels = {name: str(value) for name, value in info.items()}
        server.newest = ScrapedRun(labels, target_env_steps)


def report(
    record: Mapping[str, Any],
    usage: UsageReport | None = None,
    members: Mapping[str, tuple[int, float | None]] | None = None,
) -> None:
    """The newest numbers."""
    server = _PRESENT.get()
    if server is not None:
        server.newest = replace(
            server.newest, record=clean(record), report=usage or UsageReport(), members=members or {},
            reported_at=time.time(),
        )  # fmt: skip
