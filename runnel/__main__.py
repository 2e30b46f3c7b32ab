"""The command `runnel`, and `python -m runnel`."""

import os
import sys


def main() -> int:
    """Runs the command line; an interrupt while its modules are imported ends it without a word, as later ones do."""
    try:
        from runnel.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


def without_working_directory() -> None:
    """Python has put it first with `-m`: whatever lies there would be imported in the place of what is installed."""
    asked_for = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        here = os.getcwd()
    except OSError:  # it was removed, and nothing can be found there
        here = None
    if not sys.flags.safe_path and sys.path and sys.path[0] == here and here not in asked_for:
        del sys.path[0]


if __name__ == "__main__":
    without_working_directory()
    sys.exit(main())
