"""What gives a learner its unrolls, without processes."""

from runnel.runtime.workers.ports import InPort, OutPort
from runnel.runtime.workers.stream_headers import UnrollHeader
from runnel.transport import in_process
from runnel.transport.stream import Field


class Source:
    """A worker that takes a number of ticks for each unroll, and begins it with the newest parameters."""

    def __init__(self, context, slots, rng, slowness):
        bell = in_process.InProcessBell()
        ring = in_process.create((Field((1,), "<f4"),), slots)
        self.out = OutPort(context, ring.writer(bell, bell), "unroll")
        self.port = InPort(context, ring.reader(bell, bell), "unroll")
        self.rng, self.slowness, self.left = rng, slowness, None

    def tick(self, iteration):
        if self.left is None and self.out.free():
            self.out.claim(iteration)
            self.left = int(self.rng.integers(1, self.slowness + 1))
        elif self.left is not None:
            self.left -= 1
            if not self.left:
                self.out.commit(UnrollHeader(0, 0))
                self.left = None
