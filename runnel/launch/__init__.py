"""Starting the workers of a plan: processes of this machine."""

from runnel.launch.control import Control
from runnel.launch.framing import MalformedMessage, Received
from runnel.launch.local_launcher import LocalLauncher, LocalProcess, WorkerCommand
