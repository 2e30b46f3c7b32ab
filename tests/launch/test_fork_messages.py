"""The messages between a launcher, its fork servers and workers."""

import json
from dataclasses import dataclass

import pytest

from runnel.config.json_messages import JsonMessage
from runnel.errors import MalformedMessage
from runnel.launch.fork_messages import (
    ImportModules,
    PrepareWorkers,
    ProcessContext,
    RunEntry,
    StartRefused,
    StartWorker,
    WorkerExited,
    WorkerStarted,
    parse_entry,
    parse_order,
    parse_report,
)
from runnel.launch.fork_server_client import ForkServerClient, ServerLost

CONTEXT = ProcessContext({"A": "1"}, ["x.py"], ["/p"], {"roots": {"mine": "/m"}, "never": []}, None)
MESSAGES = [
    (ImportModules(["numpy"], CONTEXT), parse_order),
    (PrepareWorkers("a:b", {"n": 1}, CONTEXT), parse_order),
    (StartWorker(3, "actor-0"), parse_order),
    (WorkerStarted(3, 17), parse_report),
    (StartRefused(None, 24), parse_report),
    (WorkerExited(3, -9), parse_report),
    (RunEntry("a:b", {"deep": [{"n": None}]}, CONTEXT), parse_entry),
]


@pytest.mark.parametrize(("message", "read"), MESSAGES, ids=lambda each: type(each).__name__)
def test_a_message_is_read_as_it_was_written(message, read):
    assert read(json.loads(json.dumps(message.to_json()))) == message


@pytest.mark.parametrize("read", [parse_order, parse_report, parse_entry])
@pytest.mark.parametrize("value", [{}, {"start": 3, "name": "a"}, {"type": "fly"}])
def test_an_unknown_message_is_malformed(read, value):
    with pytest.raises(MalformedMessage, match="found a message of type"):
        read(value)


@dataclass(frozen=True)
class Fly(JsonMessage):
    """No server knows this order."""


def test_a_server_ends_at_an_order_that_it_does_not_know():
    server = ForkServerClient("a-server", None)
    try:
        server.order(Fly())  # pyright: ignore[reportArgumentType]
        with pytest.raises(ServerLost, match="MalformedMessage: found a message of type 'fly', expected one of import"):
            server.reply(0)
    finally:
        server.close()
