"""A launcher: one host agent, started by any command that reaches a machine. Here it is a process of this machine."""

import json
import subprocess
import sys

from runnel.errors import UserError
from runnel.launch.host_launcher import AGENT, AgentInvitation, JoinedHost, agent_arguments, joined


class OneAgent:
    """A `HostLauncher` of one machine; `command` runs Python there, for example `("ssh", "node1", "python")`."""

    interface = "127.0.0.1"  # of this machine: the agent calls back here

    def __init__(self, name: str = "only", command: tuple[str, ...] = (sys.executable,), address: str = "127.0.0.1"):
        self.name, self.command, self.address = name, command, address

    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        self.agent = subprocess.Popen([*self.command, *AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.agent.stdin is not None
        assert self.agent.stdout is not None
        arguments = agent_arguments(invitation, self.name, self.address, cpus=2)
        print(json.dumps(arguments), file=self.agent.stdin, flush=True)
        greeting = self.agent.stdout.readline()
        if not greeting:
            raise UserError(f"the agent of {self.name} ended with status {self.agent.wait()}")
        return [joined(self.name, self.address, json.loads(greeting))]

    def poll(self) -> tuple[list[str], list[str]]:
        return ([self.name] if self.agent.poll() is not None else []), []

    def why(self, name: str) -> str:
        return f"is gone: its agent ended with status {self.agent.poll()}"

    def add(self, invitation: AgentInvitation, name: str) -> JoinedHost:
        raise UserError(f"{name} cannot join: there is one machine")  # `poll` never offers one

    def drop(self, name: str) -> None:
        self.close()

    def close(self) -> None:
        with self.agent:  # closes its standard input, on which it ends, and waits
            pass
