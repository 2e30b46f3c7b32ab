"""Where things lie in a checkout."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
EXAMPLES = ROOT / "docs" / "examples"
