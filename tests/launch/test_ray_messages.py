"""The messages between a driver and its link to Ray. Without Ray."""

import pytest

from runnel.errors import MalformedMessage
from runnel.launch.host_launcher import AgentInvitation
from runnel.launch.ray_messages import (
    AddMachine,
    AgentsStarted,
    ConnectedToRay,
    ConnectToRay,
    DropMachine,
    ListMachines,
    MachineList,
    MachineLost,
    MachinesFree,
    RayCall,
    RayRefused,
    RayReply,
    StartAgents,
    read_call,
    read_news,
    write,
)
from runnel.launch.ray_shares import RayRequest

INVITATION = AgentInvitation("tcp://10.0.0.1:4711", "key", {"path": ["/p"], "environ": {"A": "1"}})
COMMANDS = [
    ConnectToRay(RayRequest("10.0.0.1:6379", 3, 1, None, False, ("-c", "x"))),
    ListMachines(),
    StartAgents(INVITATION),
    AddMachine(INVITATION, "m1"),
    DropMachine("m1"),
]
RESULTS = [
    ConnectedToRay("10.0.0.1", "10.0.0.1:6379", False, True),
    MachineList([("m1", "10.0.0.2", 8, 1)]),
    AgentsStarted([("m1", "10.0.0.2", {"public": "key", "cpus": 8, "devices": ["cpu:0"]})]),
    RayRefused("too few CPUs"),
]
MESSAGES = [
    *((RayCall(command, 3), read_call) for command in COMMANDS),
    *((RayReply(3, result), read_news) for result in RESULTS),
    (MachineLost("m1", "is gone"), read_news),
    (MachinesFree(["m2"]), read_news),
]


@pytest.mark.parametrize(("message", "read"), MESSAGES)
def test_a_message_is_one_line_and_read_as_it_was_written(message, read):
    line = write(message)
    assert line.count(b"\n") == 1
    assert read(line) == message


@pytest.mark.parametrize("read", [read_call, read_news])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"do": "drop", "name": "m1"}', "found a message of type None, expected one of"),
        (b'{"type": "fly"}', "found a message of type 'fly', expected one of"),
        (b"[1]", r"found the line b'\[1\]', expected a JSON object"),
        (b"Ray prints", "found the line b'Ray prints', expected JSON"),
    ],
)
def test_another_line_is_malformed(read, line, words):
    with pytest.raises(MalformedMessage, match=words):
        read(line)


def test_a_call_with_an_unknown_command_is_malformed():
    with pytest.raises(MalformedMessage, match="found a message of type 'fly', expected one of add_machine, connect"):
        read_call(b'{"type": "ray_call", "command": {"type": "fly"}, "id": 1}')
