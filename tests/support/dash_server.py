"""`runnel dash` as a process of its own, and requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class DashServer(NamedTuple):
    """Where it listens."""

    address: str  # with the token
    port: int
    token: str
    host: str = "127.0.0.1"  # at which it is asked

    def ask(self, path: str, method: str = "GET", body: Any = None, host: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True)
            content = b"" if body is None else json.dumps(body).encode()
            named = {"Host": host or f"{self.host}:{self.port}", "Content-Length": str(len(content))}
            for name, value in {**named, **{n.replace("_", "-"): v for n, v in headers.items()}}.items():
                connection.putheader(name, value)
            connection.endheaders(content)
            answer = connection.getresponse()
            return Answer(answer.status, {n.lower(): v for n, v in answer.getheaders()}, answer.read())

    def request(self, run: str, what: str, **headers: str) -> Answer:
        """Asks a run for something, with the token."""
        return self.ask(
            "/api/request", "POST", {"id": run, "what": what}, Authorization=f"Bearer {self.token}", **headers
        )


@contextlib.contextmanager
def dash_server(
    *run_dirs: Path,
    flags: tuple[str, ...] = (),
    before: str = "pass",
    errors: Any = None,
    cwd: Path | None = None,
    host: str = "127.0.0.1",
) -> Iterator[DashServer]:
    """`before`: what its process does first. `errors`: a file for what it says on standard error."""
    script = f"import sys; from runnel.cli.main import main; {before}; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "dash", *map(str, run_dirs), "--host", host, "--port", "0", *flags],
        stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S*:(\d+)/#token=(\S+)", line)
        assert found is not None, line
        yield DashServer(found[0], int(found[1]), found[2], host)
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert said.count("\n") <= 1, said  # how to stop it, and no line of any request
