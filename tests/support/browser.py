"""A headless Chromium, driven by its DevTools protocol over one WebSocket."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--mute-audio", "--remote-debugging-port=0",
)  # fmt: skip
START_S: Final = 60.0
WAIT_S: Final = 45.0


def path() -> str | None:
    """Where a Chromium is on this machine; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser."""

    def __init__(self, socket: ClientConnection):
        self._socket, self._numbers = socket, itertools.count(1)
        self.requests: list[str] = []  # addresses that the page has asked for
        self.sent: list[dict[str, str]] = []  # the headers of its requests
        self.problems: list[str] = []  # exceptions, and refusals of the page's content security policy
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        deadline = time.monotonic() + WAIT_S
        while True:
            message = json.loads(self._socket.recv(timeout=max(0.1, deadline - time.monotonic())))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message.get("result", {})
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Network.requestWillBeSentExtraInfo":
            self.sent.append({name.lower(): value for name, value in found["headers"].items()})
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and found["entry"]["source"] in ("security", "javascript"):
            self.problems.append(found["entry"]["text"])

    def open(self, address: str) -> None:
        self.call("Page.navigate", url="about:blank")
        self.requests.clear()
        self.sent.clear()
        self.call("Page.navigate", url=address)

    def value(self, script: str) -> Any:
        """What an expression is in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "it raises"))
        return found["result"].get("value")

    def wait(self, script: str, seconds: float = WAIT_S) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self._now(f"Boolean({script})"):
            if time.monotonic() > deadline:
                seen = self.value("document.body.innerText.slice(0, 2000)")
                raise AssertionError(f"{script} did not come true; problems: {self.problems}; the page has:\n{seen}")
            time.sleep(0.1)

    def _now(self, script: str) -> Any:
        with contextlib.suppress(RuntimeError):  # the page may not be there yet
            return self.value(script)
        return None

    def click(self, selector: str) -> None:
        """Clicks with the mouse in the middle of an element."""
        self.wait(f"document.querySelector({json.dumps(selector)})")
        script = f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: "center"}});
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        x, y = self.value(script)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def key(self, name: str, text: str = "") -> None:
        more = {"text": text} if text else {}
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=name,
            code=name,
            windowsVirtualKeyCode=KEYS.get(name, 0),
            **more,
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def size(self, width: int, height: int, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def screenshot(self, file: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))


KEYS: Final = {
    "Backspace": 8,
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    " ": 32,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    found = path()
    assert found is not None
    with (profile / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [found, *FLAGS, f"--user-data-dir={profile / 'profile'}", "about:blank"],
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        port = _wait(lambda: _port(profile / "profile" / "DevToolsActivePort"))
        address = _wait(lambda: _page(port))
        with connect(address, max_size=None, proxy=None, ping_interval=None) as socket:
            yield Browser(socket)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(find: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return find()
        if time.monotonic() > deadline:
            raise TimeoutError("the browser did not start")
        time.sleep(0.1)


def _port(file: Path) -> int:
    return int(file.read_text().splitlines()[0])


def _page(port: int) -> str:
    import urllib.request

    open_directly = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    with open_directly(f"http://127.0.0.1:{port}/json/list", timeout=5) as answer:
        pages = [each for each in json.load(answer) if each["type"] == "page"]
    return pages[0]["webSocketDebuggerUrl"]
