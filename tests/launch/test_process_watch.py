"""A watch finds those of many processes that have sent a message or ended, and registers each once."""

import os
import select
import socket
from types import SimpleNamespace

from runnel.launch.process_watch import ProcessWatch


class _Process:
    """Its line is a socket, and its end is a pipe that closes."""

    def __init__(self, name):
        self.name = name
        ours, self.line = socket.socketpair()
        self.control = SimpleNamespace(fileno=ours.fileno, ours=ours)
        self._end, self._life = os.pipe()

    def fileno(self):
        return self._end

    def end(self):
        if self._life >= 0:
            os.close(self._life)
        self._life = -1

    def close(self):
        self.end()
        self.control.ours.close()
        self.line.close()
        os.close(self._end)


def test_it_finds_who_has_sent_a_message_or_ended():
    watch, processes = ProcessWatch(), [_Process(f"actor-{i}") for i in range(20)]
    watch.add(processes)
    assert watch.poll(0.0) == set()
    processes[3].line.send(b"x")
    processes[7].end()
    assert watch.poll(0.0) == {"actor-3", "actor-7"}
    processes[3].control.ours.recv(1)
    assert watch.poll(0.0) == {"actor-7"}  # it stays so until it is dropped
    watch.drop("actor-7")
    watch.drop("actor-7")
    assert watch.poll(0.0) == set()
    watch.close()
    for process in processes:
        process.close()


def test_a_replacement_that_gets_the_descriptors_of_the_one_before_is_watched():
    watch, first = ProcessWatch(), _Process("actor-0")
    watch.add([first])
    numbers = {first.fileno(), first.control.fileno()}
    first.end()
    watch.drop("actor-0")
    first.close()
    second = _Process("actor-1")
    assert {second.fileno(), second.control.fileno()} & numbers
    watch.add([second])
    assert watch.poll(0.0) == set()
    second.line.send(b"x")
    assert watch.poll(0.0) == {"actor-1"}
    watch.close()
    second.close()


def test_a_watch_wakes_its_pollers():
    watch, process = ProcessWatch(), _Process("actor-0")
    watch.add([process])
    outer = select.poll()
    outer.register(watch.fileno(), select.POLLIN)
    assert outer.poll(0) == []
    process.line.send(b"x")
    assert [fd for fd, _ in outer.poll(0)] == [watch.fileno()]
    watch.close()
    process.close()
