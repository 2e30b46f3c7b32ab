"""The application behind the live page: answers as JSON, and the files of the page as they are in the package."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from runnel.dash.guard import HEADERS, Guard
from runnel.dash.runs import NoSuchRun, Runs
from runnel.errors import UserError, printable
from runnel.recording.files import one_line
from runnel.recording.requests import ALL
from runnel.reporting.report import PAGE
from runnel.reporting.run_facts import UNREADABLE
from runnel.reporting.run_view import VIDEOS

TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MOST_BODY_BYTES: Final = 4096
BODY_S: Final = 5.0


def make_app(runs: Runs, guard: Guard) -> Any:
    """The ASGI application."""
    answers = _Answers(runs)
    routes = [Route("/", _static("index.html"))]
    routes += [
        Route(f"/page/{path.name}", _static(path.name)) for path in sorted(PAGE.glob("*.*")) if path.suffix in TYPES
    ]
    gets = {
        "runs": answers.listed, "run": answers.view, "compare": answers.compared, "log": answers.log,
        "video": answers.video,
    }  # fmt: skip
    routes += [Route(f"/api/{name}", answer) for name, answer in gets.items()]
    routes.append(Route("/api/request", answers.ask, methods=["POST"]))
    problems = dict.fromkeys((*UNREADABLE, ClientDisconnect), _refused)
    return _Guarded(Starlette(routes=routes, exception_handlers=problems), guard)  # type: ignore[arg-type]


class _Answers:
    """What the page asks for, of the runs that are served."""

    def __init__(self, runs: Runs):
        self._runs = runs

    async def listed(self, request: Request) -> Response:
        roots = [printable(str(root)) for root in self._runs.roots]
        return await _as_json(request, lambda: {"roots": roots, "runs": self._runs.listed()})

    async def view(self, request: Request) -> Response:
        return await _as_json(request, partial(self._runs.view, request.query_params.get("id", "")))

    async def compared(self, request: Request) -> Response:
        names = request.query_params.getlist("id")
        return await _as_json(request, partial(self._runs.compared, names, request.query_params.get("metric", "")))

    async def log(self, request: Request) -> Response:
        run, name = (request.query_params.get(key, "") for key in ("id", "name"))
        return await _as_json(request, lambda: {"text": printable(self._runs.log(run, name))})

    async def video(self, request: Request) -> Response:
        run, name = (request.query_params.get(key, "") for key in ("id", "name"))
        kind = VIDEOS.get(Path(name).suffix)
        if kind is None:
            raise UserError("found no name of a video")
        return Response(await run_in_threadpool(self._runs.video, run, name), media_type=kind)

    async def ask(self, request: Request) -> Response:
        asked = json.loads(await _body(request))
        name, what = (asked.get(key) for key in ("id", "what")) if isinstance(asked, dict) else (None, None)
        if not isinstance(name, str) or what not in ALL:
            raise UserError(f"found no request; expected the id of a run, and one of {', '.join(ALL)}")
        await run_in_threadpool(self._runs.ask, name, what)
        return PlainTextResponse("asked")


class _Guarded:
    """An application that answers only requests which the guard lets pass, with headers that bind the browser."""

    def __init__(self, app: Starlette, guard: Guard):
        self._app, self._guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close"})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            status, words = refusal
            return await PlainTextResponse(words, status)(scope, receive, with_headers)
        await self._app(scope, receive, with_headers)

    def _refusal(self, scope: Any) -> tuple[int, str] | None:
        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if sum(name == b"host" for name, _ in scope["headers"]) > 1:
            return 400, "found two hosts in the request"
        return self._guard.refusal(scope["method"], scope["path"], named)


def _static(name: str) -> Callable[[Request], Any]:
    """What answers with a file of the page."""
    content, kind = (PAGE / name).read_bytes(), TYPES[Path(name).suffix]

    async def answer(request: Request) -> Response:
        del request
        return Response(content, media_type=kind)

    return answer


async def _as_json(request: Request, make: Callable[[], Any]) -> Response:
    """What is asked for; without its content where the page has it already."""
    found = await run_in_threadpool(make)
    content = json.dumps(found, separators=(",", ":"), allow_nan=False).encode()
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(content, media_type="application/json", headers={"ETag": tag})


async def _body(request: Request) -> bytes:
    """The body of a request, which must come soon and be short."""
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MOST_BODY_BYTES:
                    raise UserError("found a request that is too long")
    except TimeoutError:
        raise UserError(f"found no whole request within {BODY_S:.0f} seconds") from None
    return body


async def _refused(request: Request, problem: Exception) -> Response:
    del request
    status = 404 if isinstance(problem, NoSuchRun | FileNotFoundError) else 400
    return PlainTextResponse(printable(one_line(problem)), status)
