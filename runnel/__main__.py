"""`python -m runnel`."""

import os
import sys

# Python has put the working directory first: whatever lies there would be imported in the place of what is installed.
asked_for = os.environ.get("PYTHONPATH", "").split(os.pathsep)
try:
    here = os.getcwd()
except OSError:  # it was removed, and nothing can be found there
    here = None
if not sys.flags.safe_path and sys.path and sys.path[0] == here and here not in asked_for:
    del sys.path[0]

from runnel.cli.main import main  # noqa: E402

sys.exit(main())
