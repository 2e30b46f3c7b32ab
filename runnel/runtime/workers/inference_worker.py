"""An inference worker: acts for environments that other workers step."""

from __future__ import annotations

from runnel.runtime.programs.acting import ParameterSource
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.recovery.journal import Arrays
from runnel.runtime.workers.assembly import Assignment, make_servers
from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceServer
from runnel.runtime.workers.worker_loop import Worker, listen

POLL_S = 1e-3
"""For how long a worker polls before the deadline of a batch."""


class InferenceWorker(Worker):
    """A turn is one unroll of all environments in step or, in an asynchronous run, one batch of requests.

    A learner that also acts (SEED) has an inference worker.
    """

    def __init__(self, a: Assignment, parameters: ParameterSource):
        self.a, self.context = a, a.context
        self.servers = make_servers(a, parameters)
        self._in_step = [server for server in self.servers if isinstance(server, InferenceServer)]
        self._asynchronous = [server for server in self.servers if isinstance(server, AsyncInferenceServer)]

    def compile(self) -> None:
        for server in self._in_step:
            server.open()
        for server in self._asynchronous:
            server.compile()

    def boundary(self) -> None:
        listen(self.context, True, before_pause=self._land)

    def turn(self) -> None:
        if self._in_step:
            self.serve_unroll()
        else:
            self._serve_requests()

    def serve_unroll(self) -> None:
        """Acts for one unroll of every block, in step."""
        servers = self._in_step
        unroll = servers[0].clients[0].unrolls
        for server in servers:
            server.begin(unroll)
        self.context.leave_boundary()
        for t in range(self.a.run_graph.unroll):
            for split in range(len(servers[0].sets)):
                for server in servers:
                    server.act_split(t, split)
        for server in servers:
            server.end()

    def _serve_requests(self) -> None:
        """Acts once for the blocks that have sent requests."""
        servers = self._asynchronous
        if not any(server.flight for server in servers):
            self.context.wait(
                lambda: any(server.due() for server in servers) or None,
                "observations",
                # Sleeps are long by up to a millisecond: the last one is polled.
                lambda: min(server.left_s() for server in servers) - POLL_S,
            )
        self.context.leave_boundary()
        for server in servers:
            server.serve()

    def _land(self) -> None:
        """A batch that is under way is answered before a pause."""
        for server in self._asynchronous:
            server.land()

    def save(self) -> Arrays:
        saved: Arrays = {}
        for server in self.servers:
            saved |= worker_checkpoint.save_server(server)
        return saved
