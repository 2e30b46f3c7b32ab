"""`python -m runnel`."""

import sys

from runnel.cli import main

sys.exit(main())
