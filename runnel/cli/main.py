"""The command line: `runnel train`, `sweep`, `resume`, `eval`, `versus` and more.

Everything is imported when a command needs it, so that `runnel --help` and `runnel list` answer without JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.cli import arguments
from runnel.cli.completion import COMPLETE, complete_command, completion_command
from runnel.cli.console import complain
from runnel.cli.doctor import doctor_command
from runnel.cli.pages import help_command, link
from runnel.cli.policy_commands import eval_command, export_command, policies_command, versus_command
from runnel.cli.showing_commands import bench_command, dash_command, list_command, plan_command, plot_command
from runnel.cli.training_commands import resume_command, sweep_command, train_command
from runnel.deprecated import Renamed
from runnel.errors import EnvironmentFailed, RunFailed, UserError, WorkerFailed, printable
from runnel.system import startup
from runnel.system.exits import contained
from runnel.system.limits import LEAST, check_descriptors
from runnel.user_code import named_modules

PACKAGE = Path(__file__).resolve().parents[1]

COMMANDS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "train": train_command,
    "sweep": sweep_command,
    "resume": resume_command,
    "eval": eval_command,
    "versus": versus_command,
    "policies": policies_command,
    "export": export_command,
    "plan": plan_command,
    "plot": plot_command,
    "dash": dash_command,
    "bench": bench_command,
    "list": list_command,
    "doctor": doctor_command,
    "help": help_command,
    "completion": completion_command,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 2 for a user's mistake, reported in one or two lines."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = "runnel"
    try:
        if argv[:1] == [COMPLETE]:
            return complete_command(argv[1:])
        if argv[:1] != ["doctor"]:  # which says more about it
            check_descriptors(LEAST)
        args = arguments.parse(argv)
        command = f"runnel {args.command}"
        with contained(), _saying_what_takes_long(args), _showing_old_names(command):
            named_modules.keep_settings_out()
            return COMMANDS[args.command](args)
    except UserError as error:
        # A line or two, whatever a library put into its reason.
        lines = arguments.in_flags(error).strip().splitlines()[: 1 if error.page else 2]
        complain(f"{command}: " + "\n".join([*lines, *link(error)][:2]))
        return 2
    except (EnvironmentFailed, RunFailed, WorkerFailed) as error:
        # With the worker's own traceback, and none of this process's.
        complain("\n".join([f"{command}: {error}", *link(error)]))
        return 1
    except FileNotFoundError:
        if os.path.exists("."):
            raise
        complain(f"{command}: the working directory was removed; change to one that exists")
        return 2
    except KeyboardInterrupt as stopped:
        return getattr(stopped, "status", 130)
    except BrokenPipeError:
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        complain(f"{command}: cannot write: {error.strerror}")
        return 1
    finally:
        _let_go()


def _saying_what_takes_long(args: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Before anything else is imported: that alone may take seconds."""
    if args.command not in ("train", "sweep", "resume", "eval", "versus", "export", "plan"):
        return contextlib.nullcontext()
    # What the others print is their result.
    shows = args.command in ("train", "sweep", "resume") and not getattr(args, "dry_run", False)
    line = _first_line(args) if shows else ""
    return startup.starting(getattr(args, "quiet", False), None if shows else sys.stderr, "importing JAX", line)


def _first_line(args: argparse.Namespace) -> str:
    """What a command that trains is about to do."""
    if args.command == "resume":
        return printable(f"resuming {args.run_dir}")
    named = " on ".join(name for name in (args.algorithm, args.environment) if name is not None)
    return printable(f"{'training' if args.command == 'train' else 'sweeping'} {named or args.config}")


@contextlib.contextmanager
def _showing_old_names(command: str) -> Iterator[None]:
    """Prints a line for each old name that is used. Python itself shows such warnings to authors of scripts alone."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
            if not issubclass(category, Renamed):
                return show(message, category, filename, lineno, *rest)
            where = "" if Path(filename).is_relative_to(PACKAGE) else f" ({filename}, line {lineno})"
            return complain(f"{command}: {message}{where}")

        if not sys.warnoptions:
            warnings.simplefilter("default", Renamed)
            warnings.showwarning = shown
        yield


def _let_go() -> None:
    """The reader of the output may be gone (`runnel list | head`, a closed terminal), which must not be an error."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except ValueError:
            pass  # closed
