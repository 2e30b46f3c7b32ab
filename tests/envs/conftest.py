"""Puts the environments beside these tests where a user's own would be: on the Python path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
