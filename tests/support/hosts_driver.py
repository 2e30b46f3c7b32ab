"""Holds `RayHostLauncher` on a machine of a test's network, and does what lines of JSON say: a driver without a run.

python hosts_driver.py '{"address": ..., "agent": ...}' answers ["start"], ["poll"], ["add", NAME], ["drop", NAME]
"""

import json
import sys

import zmq

from runnel.errors import UserError
from runnel.launch.host_launcher import AgentInvitation
from runnel.launch.ray_launcher import RayHostLauncher


def say(**value) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    public, _ = zmq.curve_keypair()
    invitation = AgentInvitation("tcp://10.77.0.1:1", public.decode(), {"path": sys.path})
    try:
        hosts = RayHostLauncher(**json.loads(sys.argv[1]))
    except UserError as error:
        return say(error=str(error))
    say(interface=hosts.interface, address=hosts.address, started=hosts.started, ray_here="ray" in sys.modules)
    for line in sys.stdin:
        do, *rest = json.loads(line)
        try:
            match do:
                case "start":
                    say(joined=[joined._asdict() for joined in hosts.start(invitation)])
                case "poll":
                    lost, free = hosts.poll()
                    say(lost={name: hosts.why(name) for name in lost}, free=free)
                case "add":
                    say(joined=hosts.add(invitation, *rest)._asdict())
                case "drop":
                    say(dropped=hosts.drop(*rest))
        except UserError as error:
            say(error=str(error))
    hosts.close()


if __name__ == "__main__":
    main()
