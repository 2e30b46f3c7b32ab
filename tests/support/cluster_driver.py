"""Trains over agents of this machine under a limit of descriptors, and says where its driver listens.

python cluster_driver.py '{"run_dir": ..., "descriptors": 1024, ...}' prints {"port": ...}; each line `NAME` on its
standard input offers a machine of that name.
"""

import json
import resource
import sys
import threading

import runnel
from runnel.distributions import load
from runnel.launch.host_launcher import AgentInvitation, JoinedHost, LocalHostLauncher
from runnel.planning.machine import Machine


class Hosts(LocalHostLauncher):
    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        joined = super().start(invitation)
        port = int(invitation.address.rpartition(":")[2])
        print(json.dumps({"port": port, "agents": {each.name: self.pid(each.name) for each in joined}}), flush=True)
        return joined


def main() -> None:
    told = json.loads(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (told["descriptors"], told["descriptors"]))
    hosts = Hosts([Machine(2, ("cpu:0",), "a")])

    def offer() -> None:
        for line in sys.stdin:
            hosts.offer(Machine(2, ("cpu:0",), line.strip()))

    threading.Thread(target=offer, daemon=True).start()
    runnel.train(
        "impala", "CartPole-v1", load("async")(actors=2), envs=8, steps=told["steps"], seed=3, quiet=True,
        run_dir=told["run_dir"], launcher=hosts, checkpoint_every_s=told.get("checkpoint_every_s", 1.0),
        settings={"unroll": 16, "hidden": (16,)},
    )  # fmt: skip


if __name__ == "__main__":
    main()
