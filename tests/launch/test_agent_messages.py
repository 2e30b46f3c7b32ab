"""The protocol of driver and agents: every message survives its way, and what is no message is dropped and counted."""

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import MalformedMessage
from runnel.launch.agent_messages import (
    AgentCommand,
    AgentRequest,
    FreePort,
    News,
    Pulse,
    Reply,
    Result,
    StartWorkers,
    parse_news,
    parse_request,
)

OBJECTS = st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.booleans()), max_size=3)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
REPORTS = st.lists(st.tuples(st.text(), st.integers(), OBJECTS), max_size=3)
TYPES = {
    "dict[str, Any]": OBJECTS, "list[dict[str, Any]]": st.lists(OBJECTS, max_size=3), "float": FINITE,
    "list[tuple[str, int, dict[str, Any]]]": REPORTS,
}  # fmt: skip


def messages(kind: Any) -> st.SearchStrategy[Any]:
    own = {each.name: TYPES.get(str(each.type), ...) for each in dataclasses.fields(kind)}
    if kind is Reply:
        own["result"] = st.one_of(*map(messages, get_args(Result)))
    return st.builds(kind, **own)


def sent(value: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("kind", get_args(AgentCommand), ids=lambda kind: kind.__name__)
def test_every_request_survives_its_way(kind: type) -> None:
    @settings(max_examples=30, deadline=None)
    @given(messages(kind), st.none() | st.integers())
    def survives(command: Any, id: int | None) -> None:
        assert parse_request(sent(AgentRequest(command, id).to_json())) == AgentRequest(command, id)

    survives()


@pytest.mark.parametrize("kind", get_args(News), ids=lambda kind: kind.__name__)
def test_all_news_survive_their_way(kind: type) -> None:
    @settings(max_examples=30, deadline=None)
    @given(messages(kind))
    def survives(news: Any) -> None:
        assert parse_news(sent(news.to_json())) == news

    survives()


def test_malformed_messages_are_refused_in_words() -> None:
    with pytest.raises(MalformedMessage, match="found a message of type 'explode', expected one of clear_channels, "):
        parse_request({"type": "agent_request", "command": {"type": "explode"}, "id": None})
    with pytest.raises(MalformedMessage, match="message 'start_workers', field 'orders': found 3, expected"):
        parse_request({**AgentRequest(StartWorkers([])).to_json(), "command": {"type": "start_workers", "orders": 3}})
    with pytest.raises(MalformedMessage, match="message 'pulse', field 'beats': found 'x', expected int"):
        parse_news({**Pulse().to_json(), "beats": {"actor-0": "x"}})
    with pytest.raises(MalformedMessage, match="message 'reply', field 'result': found 7, expected"):
        parse_news({**Reply(1, FreePort(7)).to_json(), "result": 7})
