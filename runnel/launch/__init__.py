"""Starting the workers of a plan: processes of this machine."""

from runnel.launch.control import Control
from runnel.launch.local import LocalLauncher, Process, Worker
from runnel.launch.message import MalformedMessage, Received
