"""Shared by all tests: the toys beside them, and a place for compiled programs."""

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A machine that only says yes or no must say the same twice; a person's may look further each time.
settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("repeatable")
