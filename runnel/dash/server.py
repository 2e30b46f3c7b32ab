"""The server of the live page: where it listens, and at which address it is opened."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from runnel.dash.guard import Guard
from runnel.dash.runs import Runs
from runnel.errors import NotInstalled, UserError

CONNECTIONS: Final = 100


def _missing() -> NotInstalled:
    return NotInstalled("`runnel dash`", "a web server (Starlette and uvicorn)", "dash")


def serve(roots: Sequence[Path], host: str, port: int, say: Callable[[str], None], *, may_come: bool = False) -> None:
    """Serves runs until Ctrl-C. `say` is called with the address, once it can be opened.

    `may_come`: a directory may not be there yet.
    """
    for root in roots:
        if not root.is_dir() and not (may_come and not os.path.lexists(root)):
            raise UserError(f"{root} is no directory; expected one that holds runs, or a run")
    try:
        import uvicorn

        from runnel.dash.app import make_app
        from runnel.dash.connection import REQUEST_S, Connection
    except ImportError:
        raise _missing() from None
    guard = Guard(host, secrets.token_urlsafe(24))
    app = make_app(Runs(roots), guard)
    listening = _listen(host, port)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none", http=Connection,
        limit_concurrency=CONNECTIONS, timeout_keep_alive=int(REQUEST_S), timeout_graceful_shutdown=2,
    )  # fmt: skip
    with contextlib.closing(listening):
        say(address(guard, listening.getsockname()[1]))
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def address(guard: Guard, port: int) -> str:
    """What to open. The token stands behind `#`, which browsers send to no server."""
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(guard.host, guard.host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/#token={guard.token}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((host, port))
            found.listen(128)
        except BaseException:
            found.close()
            raise
        return found
    except (socket.gaierror, UnicodeError):
        raise UserError(
            f"host={host}: found no such address, expected one of this machine, such as 127.0.0.1",
            keywords=("host",),
            page="command-line#dash",
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another port=",
            keywords=("port",),
            page="command-line#dash",
        ) from None
