"""The live page at an address of this machine that others can reach: nobody reads there without the token."""

import socket
import urllib.parse

import pytest
from dash_server import DashServer, dash_server
from made_runs import make_run

pytest.importorskip("websockets")
import browser as chromium


def own_address() -> str:
    """An address of this machine that is not loopback; asking for it sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return asked.getsockname()[0]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server on such an address, and the file of what it says on standard error."""
    root = tmp_path_factory.mktemp("served")
    make_run(root / "runs" / "one")
    with (
        (root / "errors").open("w") as errors,
        dash_server(root / "runs", host=own_address(), errors=errors) as server,
    ):
        yield server, root / "errors"


def test_each_request_that_reads_or_changes_needs_the_token(served):
    server, errors = served
    read = ["runs", "run?id=0/one", "compare?id=0/one&metric=mean_return", "log?id=0/one&name=actor-1.log", "video"]
    wrong = [server.token[:-1], f"{server.token}x", server.token.swapcase(), "", "Bearer", "\u00e9"]
    for path in (f"/api/{name}" for name in read):
        assert server.ask(path).status == 401
        assert server.ask(path, Cookie=f"runnel-token={server.token}").status == 401
        more = "&" if "?" in path else "?"
        assert server.ask(f"{path}{more}{urllib.parse.urlencode({'token': server.token})}").status == 401
        for token in wrong:
            refused = server.ask(path, Authorization=f"Bearer {token}")
            assert (refused.status, server.token.encode() in refused.body) == (401, False)
    for token in wrong:
        answer = server.ask("/api/request", "POST", {"id": "0/one", "what": "stop"}, Authorization=f"Bearer {token}")
        assert answer.status == 401
    assert server.request("0/one", "stop").body == b"found no run in progress there"
    right = {"Authorization": f"Bearer {server.token}"}
    assert [run["id"] for run in server.ask("/api/runs", **right).json()["runs"]] == ["0/one"]
    assert server.ask("/api/runs", host=f"attacker.example:{server.port}", **right).status == 421
    assert server.ask("/api/runs", Origin="http://attacker.example", **right).status == 403
    for path in ("/", "/page/dash.js", "/page/api.js"):  # which have nothing of any run
        answer = server.ask(path)
        assert (answer.status, server.token.encode() in answer.body) == (200, False)
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert server.host != "127.0.0.1"
    with pytest.raises(ConnectionRefusedError):
        DashServer("", server.port, "").ask("/")
    assert errors.read_text() == ""  # no request is logged, and no token


@pytest.mark.skipif(chromium.path() is None, reason="there is no Chromium on this machine")
def test_a_browser_shows_nothing_without_the_token_and_does_not_pass_it_on(served, tmp_path):
    server, errors = served
    bare = server.address.partition("#")[0]
    with chromium.browser(tmp_path) as page:
        for address in (bare, f"{bare}#token=wrong"):
            page.open(address)
            page.wait("document.querySelector('#state').textContent.includes('found no valid token')")
            assert page.value("document.querySelectorAll('tbody tr').length") == 0
        page.open(server.address)
        page.wait("document.querySelectorAll('tbody tr').length === 1")
        assert page.value("location.href") == bare
        page.click("tbody a")
        page.wait("document.body.innerText.includes('Bottleneck')")
        sent = page.sent
        assert len([headers for headers in sent if headers.get("authorization") == f"Bearer {server.token}"]) >= 2
        assert not [url for url in page.requests if server.token in url and url != server.address]
        for headers in sent:
            others = {name: value for name, value in headers.items() if name != "authorization"}
            assert server.token not in str(others)
            assert "referer" not in others
        page.open(bare)  # the tab has kept it
        page.wait("document.querySelectorAll('tbody tr').length === 1")
        assert page.value("document.cookie + JSON.stringify(localStorage)") == "{}"
        assert page.problems == []
    assert errors.read_text() == ""
