"""Every transport under one contract: tests take `transport`, `stream` or `between` and run once for each transport."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from courier_pair import CourierPair
from tcp_hosts import close_hosts
from transport_cases import CASES, OpenStream, TransportCase, add_case
from transport_peers import Peer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = metafunc.config.getoption("--transport")
    names = [add_case(given)] if given else ["in process", "shared memory", "tcp"]
    if "transport_name" in metafunc.fixturenames:
        metafunc.parametrize("transport_name", names)
    if "between_name" in metafunc.fixturenames:  # whose ends can be in different processes
        metafunc.parametrize("between_name", [name for name in names if CASES[name].path is not None])


@pytest.fixture(autouse=True)
def _no_peer_outlives_its_test() -> Iterator[None]:
    yield
    Peer.kill_all()


@pytest.fixture(autouse=True, scope="module")
def _no_courier_outlives_the_module() -> Iterator[None]:
    yield
    close_hosts()


@pytest.fixture
def transport(transport_name: str) -> TransportCase:
    return CASES[transport_name]


@pytest.fixture
def stream(transport: TransportCase) -> Iterator[OpenStream]:
    made = OpenStream(transport)
    yield made
    made.close()


@pytest.fixture
def between(between_name: str) -> Iterator[OpenStream]:
    """A stream one end of which another process may take."""
    made = OpenStream(CASES[between_name])
    yield made
    made.close()


@pytest.fixture
def two() -> Iterator[CourierPair]:
    """Two hosts with a courier each, and a stream from the first to the second."""
    made = CourierPair()
    yield made
    made.close()
