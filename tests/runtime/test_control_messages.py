"""The control protocol: every message survives its way as JSON, and what is no message is refused in words."""

import contextlib
import dataclasses
import json
import subprocess
import sys
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import MalformedMessage
from runnel.runtime.control_messages import Command, Event, Failed, Go, Pause, Report, parse_command, parse_report

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def messages(kind: type) -> st.SearchStrategy[Any]:
    if kind is Event:
        return st.builds(Event, event=st.text(), details=st.dictionaries(st.text(), JSON, max_size=3))
    return st.builds(kind, **{field.name: ... for field in dataclasses.fields(kind)})


st.register_type_strategy(float, FINITE)


@pytest.mark.parametrize("kind", [*get_args(Command), *get_args(Report)], ids=lambda kind: kind.__name__)
def test_every_message_survives_its_way_as_json(kind: type) -> None:
    parse = parse_command if kind in get_args(Command) else parse_report

    @settings(max_examples=30, deadline=None)
    @given(messages(kind))
    def survives(message: Any) -> None:
        assert parse(json.loads(json.dumps(message.to_json()))) == message

    survives()


@given(
    st.dictionaries(st.sampled_from(["type", "at_iteration", "rejoins"]) | st.text(), JSON, max_size=2),
    st.sampled_from([{}, {"type": "stop"}, {"type": "pause"}, {"type": "saved"}]),
)
def test_any_object_is_a_message_or_is_refused(fields: dict[str, Any], of_type: dict[str, str]) -> None:
    value = fields | of_type
    for parse, kinds in ((parse_command, get_args(Command)), (parse_report, get_args(Report))):
        with contextlib.suppress(MalformedMessage):
            assert type(parse(value)) in kinds


def test_a_report_is_no_command() -> None:
    with pytest.raises(MalformedMessage, match="found a message of type 'failed', expected one of go, load, pause"):
        parse_command(Failed("ValueError", "no", "").to_json())


def test_wrong_fields_are_named_with_their_message() -> None:
    with pytest.raises(MalformedMessage, match="message 'pause', field 'at_iteration': found 'soon', expected int"):
        parse_command({**Pause().to_json(), "at_iteration": "soon"})
    with pytest.raises(MalformedMessage, match="message 'go': found no target_return, expected the fields"):
        parse_command({"type": "go", "until_env_steps": 3})
    assert parse_command({"type": "go", "until_env_steps": 3, "target_return": 9}) == Go(3, 9.0)


def test_an_environment_worker_needs_neither_numpy_nor_jax_for_it() -> None:
    check = "import sys, runnel.runtime.control_messages; print({'numpy', 'jax'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
