"""The Ray actor on each machine of a run: it starts the agent there, and keeps its standard input open.

Ray sends its code, not its name, so that a machine without runnel, or with another version, can report that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RayHostActor:
    """Owns the agent of its machine, which ends with it."""

    def start(self, command: Sequence[str], arguments: dict[str, Any], wanted: str) -> dict[str, Any]:
        """Starts the agent; returns its greeting, or why there is none.

        Everything is imported here: this runs on a machine that may have another runnel, or none.
        """
        import os
        import platform
        import sys
        import time

        # For modules that only the driver's path leads to, such as a checkout on a shared file system.
        sys.path += [entry for entry in arguments["place"].get("path", ()) if entry not in sys.path]
        try:
            import runnel
        except ImportError as error:
            return {"refused": f"{sys.executable} cannot import runnel ({error}); install it on every machine"}
        if runnel.__version__ != wanted:  # it may not even have agents
            return {"runnel": runnel.__version__, "python": platform.python_version()}
        from runnel.launch import host_launcher

        # Of the variables that Ray sets for its own workers, an agent needs only those that name its GPUs.
        rays_own = ("OMP_NUM_THREADS", "RUNNEL_RAY_FOLDER")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k not in rays_own}
        rays = os.path.join("site-packages", "ray", "")
        environ["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if rays not in os.path.join(entry, ""))
        if not arguments["gpus"]:
            environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            self.agent = host_launcher.AgentProcess((sys.executable, *command), arguments, environ)
            return self.agent.greeting(time.monotonic() + host_launcher.START_S)
        except host_launcher.UserError as error:
            return {"refused": str(error)}

    def watch(self) -> str:
        """Returns when the agent has ended."""
        self.agent.wait()
        return self.agent.last_words()

    def close(self) -> None:
        """Ends the agent, which ends its workers."""
        self.agent.close()
