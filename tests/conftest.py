"""Shared by all tests: the toys beside them, and a place for compiled programs."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
