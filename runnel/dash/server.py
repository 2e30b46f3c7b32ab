"""The server of the live page: Starlette and uvicorn, and the files of the page as they are in the package."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from runnel.dash.guard import HEADERS, Guard
from runnel.dash.runs import NoSuchRun, Runs
from runnel.errors import NotInstalled, UserError, printable
from runnel.recording.files import one_line
from runnel.recording.requests import ALL
from runnel.reporting.report import PAGE
from runnel.reporting.run_view import UNREADABLE, VIDEOS

TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MOST_BODY_BYTES: Final = 4096
BODY_S: Final = 5.0
CONNECTIONS: Final = 100


def _missing() -> NotInstalled:
    return NotInstalled("`runnel dash`", "a web server (Starlette and uvicorn)", "dash")


def make_app(runs: Runs, guard: Guard) -> Any:
    """The ASGI application."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect, Request
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise _missing() from None

    def static(name: str) -> Callable[[Request], Any]:
        content, kind = (PAGE / name).read_bytes(), TYPES[Path(name).suffix]

        async def answer(request: Request) -> Response:
            del request
            return Response(content, media_type=kind)

        return answer

    async def as_json(request: Request, make: Callable[[], Any]) -> Response:
        """What is asked for; without its content where the page has it already."""
        found = await run_in_threadpool(make)
        content = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(content, media_type="application/json", headers={"ETag": tag})

    async def listed(request: Request) -> Response:
        roots = [printable(str(root)) for root in runs.roots]
        return await as_json(request, lambda: {"roots": roots, "runs": runs.listed()})

    async def view(request: Request) -> Response:
        return await as_json(request, partial(runs.view, request.query_params.get("id", "")))

    async def compared(request: Request) -> Response:
        names = request.query_params.getlist("id")
        return await as_json(request, partial(runs.compared, names, request.query_params.get("metric", "")))

    async def log(request: Request) -> Response:
        asked = request.query_params
        return await as_json(request, lambda: {"text": printable(runs.log(asked.get("id", ""), asked.get("name", "")))})

    async def video(request: Request) -> Response:
        name = request.query_params.get("name", "")
        kind = VIDEOS.get(Path(name).suffix)
        if kind is None:
            raise UserError("found no name of a video")
        return Response(await run_in_threadpool(runs.video, request.query_params.get("id", ""), name), media_type=kind)

    async def ask(request: Request) -> Response:
        body = b""
        try:
            async with asyncio.timeout(BODY_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > MOST_BODY_BYTES:
                        raise UserError("found a request that is too long")
        except TimeoutError:
            raise UserError(f"found no whole request within {BODY_S:.0f} seconds") from None
        asked = json.loads(body)
        name, what = (asked.get(key) for key in ("id", "what")) if isinstance(asked, dict) else (None, None)
        if not isinstance(name, str) or what not in ALL:
            raise UserError(f"found no request; expected the id of a run, and one of {', '.join(ALL)}")
        await run_in_threadpool(runs.ask, name, what)
        return PlainTextResponse("asked")

    async def refused(request: Request, problem: Exception) -> Response:
        del request
        status = 404 if isinstance(problem, NoSuchRun | FileNotFoundError) else 400
        return PlainTextResponse(printable(one_line(problem)), status)

    routes = [Route("/", static("index.html"))]
    routes += [
        Route(f"/page/{path.name}", static(path.name)) for path in sorted(PAGE.glob("*.*")) if path.suffix in TYPES
    ]
    gets = {"runs": listed, "run": view, "compare": compared, "log": log, "video": video}
    routes += [Route(f"/api/{name}", answer) for name, answer in gets.items()]
    routes.append(Route("/api/request", ask, methods=["POST"]))
    problems = dict.fromkeys((*UNREADABLE, ClientDisconnect), refused)
    app = Starlette(routes=routes, exception_handlers=problems)  # type: ignore[arg-type]

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await app(scope, receive, send)
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        repeated = len(named) < len(scope["headers"])
        refusal = guard.refusal(scope["method"], scope["path"], named)
        if repeated and sum(name == b"host" for name, _ in scope["headers"]) > 1:
            refusal = (400, "found two hosts in the request")

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        if refusal is not None:
            status, words = refusal
            return await PlainTextResponse(words, status)(scope, receive, with_headers)
        await app(scope, receive, with_headers)

    return guarded


def serve(roots: Sequence[Path], host: str, port: int, say: Callable[[str], None], *, may_come: bool = False) -> None:
    """Serves runs until Ctrl-C. `say` is called with the address, once it can be opened.

    `may_come`: a directory may not be there yet.
    """
    for root in roots:
        if not root.is_dir() and not (may_come and not os.path.lexists(root)):
            raise UserError(f"{root} is no directory; expected one that holds runs, or a run")
    try:
        import uvicorn

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
