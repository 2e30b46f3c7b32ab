"""What the driver and an agent say to each other arrives once and in order, whatever is lost on the way."""

import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.launch.agent_mail import AGAIN_S, FRAME_BYTES, AgentMail
from runnel.launch.framing import MalformedMessage


class Network:
    """Two mails and what is on its way between them; `fate` says what becomes of it."""

    def __init__(self, seed: int):
        self.now, self.draw, self.bad = 0.0, random.Random(seed), True
        self.ways = (deque(), deque())
        self.ends = tuple(AgentMail(self._sender(way), lambda: self.now) for way in self.ways)
        self.came = ([], [])

    def _sender(self, way):
        def transmit(frames):
            fate = self.draw.random() if self.bad else 1.0
            if fate < 0.2:
                return False  # no connection now
            if fate > 0.5:  # else it is lost on the way
                way.append([bytes(frame) for frame in frames])
            return True

        return transmit

    def move(self, seconds: float = 0.1):
        self.now += seconds
        for end in self.ends:
            end.tick()
        for k, way in enumerate(self.ways):
            while way:
                message = self.ends[1 - k].take(way.popleft())
                if message is not None:
                    self.came[1 - k].append(message)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=30), st.integers(0, 2**32))
def test_everything_arrives_once_and_in_order(sent, seed):
    network = Network(seed)
    for number, (end, moves) in enumerate(sent):
        network.ends[end].send({"number": number}, {"x": np.arange(number)})
        for _ in range(moves):
            network.move()
    network.bad = False
    for _ in range(100):
        network.move(AGAIN_S / 4)
    for end in (0, 1):
        wanted = [number for number, (source, _) in enumerate(sent) if source != end]
        assert [message.value["number"] for message in network.came[end]] == wanted
        for message in network.came[end]:
            np.testing.assert_array_equal(message.arrays["x"], np.arange(message.value["number"]))
    for end in network.ends:
        assert end.unacknowledged == 0


def test_long_messages_travel_in_pieces():
    network = Network(0)
    network.bad = False
    state = np.random.default_rng(0).integers(0, 255, 3 * FRAME_BYTES, np.uint8)
    network.ends[0].send({"text": "x" * 2 * FRAME_BYTES}, {"state": state, "none": np.zeros((0, 3))})
    network.move()
    (message,) = network.came[1]
    assert len(message.value["text"]) == 2 * FRAME_BYTES
    np.testing.assert_array_equal(message.arrays["state"], state)
    assert message.arrays["none"].shape == (0, 3)


@given(st.lists(st.binary(max_size=64), max_size=4), st.booleans())
def test_what_no_mail_sends_is_refused(frames, headed):
    mail, sent = AgentMail(lambda frames: True), []
    other = AgentMail(lambda frames: sent.append(list(frames)) or True)
    other.send({"a": 1})
    if headed:
        frames = [sent[0][0], *frames]
    if headed and len(frames) > 1 and b"".join(frames[1:]) == b'{"value":{"a":1},"arrays":[]}':
        return
    with pytest.raises(MalformedMessage):
        mail.take(frames)
    assert mail.take(sent[0]).value == {"a": 1}  # and it goes on
