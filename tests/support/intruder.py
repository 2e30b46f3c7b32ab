"""Knocks at ports as somebody who has no business there: with noise, without keys, and with keys nobody knows."""

from __future__ import annotations

import os
import socket
import sys
import time

import zmq

address, *ports = sys.argv[1:]
context = zmq.Context()
context.setsockopt(zmq.LINGER, 0)
for port in map(int, ports):
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + os.urandom(256)
    for noise in (os.urandom(4096), greeting, b"GET / HTTP/1.0\r\n\r\n"):
        with socket.create_connection((address, port), 5) as end:
            end.sendall(noise)
            end.settimeout(0.3)
            try:
                said = end.recv(65536)
            except OSError:
                said = b""
            assert len(said) < 512, "it says too much to a stranger"
    for secured in (False, True):
        knocker = context.socket(zmq.DEALER)
        if secured:
            public, secret = zmq.curve_keypair()
            knocker.curve_publickey, knocker.curve_secretkey = public, secret
            knocker.curve_serverkey = zmq.curve_keypair()[0]
        knocker.connect(f"tcp://{address}:{port}")
        knocker.setsockopt(zmq.SNDTIMEO, 300)
        for _ in range(20):
            try:
                knocker.send_multipart([os.urandom(100), os.urandom(1000)])
            except zmq.Again:
                break
        time.sleep(0.2)
        assert knocker.poll(200) == 0, "it answers a stranger"
        knocker.close()
context.destroy(linger=0)
