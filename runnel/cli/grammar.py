"""The command line's grammar: every command with its flags.

argparse, not tyro: tyro's errors are boxes of many lines where people and scripts want one, and it would
import every algorithm to know its settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Protocol

from runnel import __version__
from runnel.cli import population_flags
from runnel.cli.examples import EXAMPLES, text_of
from runnel.cli.flag_values import machines, seeds, whole
from runnel.cli.parser import HelpFormatter, Parser
from runnel.cli.shared_flags import (
    add_deterministic,
    add_evaluation,
    add_member,
    add_on_nan,
    add_placement,
    add_search,
    add_stopping,
    add_training,
    add_trust,
    add_watching,
    add_what_to_train,
)  # fmt: skip
from runnel.cli.shells import SHELLS
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED

TRAINED: Final = "ALGORITHM ENVIRONMENT [flags]"


class AddCommand(Protocol):
    """Adds a command, by its name and what it does in a few words."""

    def __call__(self, name: str, help: str, **kwargs: Any) -> Parser: ...


def grammar() -> Parser:
    parser = Parser(
        prog="runnel", description="Distributed reinforcement learning on JAX.",
        usage="runnel COMMAND ...", formatter_class=HelpFormatter, epilog=text_of(EXAMPLES["runnel"]),
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"runnel {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, title="commands", prog="runnel",
        description="`runnel COMMAND --help` shows the flags of a command, with defaults in parentheses, and examples",
    )  # fmt: skip

    def command(name: str, help: str, **kwargs: Any) -> Parser:
        added = commands.add_parser(
            name, help=help, description=help[0].upper() + help[1:] + ".", formatter_class=HelpFormatter,
            epilog=text_of(EXAMPLES.get(name, ())), **kwargs,
        )  # fmt: skip
        added.set_defaults(parser=added)
        return added

    for add in (
        _add_training_commands, _add_playing_commands, _add_storing_commands, _add_showing_commands,
        _add_helping_commands,
    ):  # fmt: skip
        add(command)
    return parser


def _add_training_commands(command: AddCommand) -> None:
    usage = f"runnel train {TRAINED}\n       runnel train --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    train = command("train", "train an algorithm on an environment", add_help=False, usage=usage)
    long = add_training(train, add_what_to_train(train, nargs="?"))
    add_stopping(long)
    several = train.add_argument_group("several runs at once")
    several.add_argument(
        "--seeds",
        type=seeds,
        metavar="N|A,B,...",
        help="train several runs: N seeds from --seed on, or a list of seeds",
    )
    population_flags.add(several, whole(2, MOST_MEMBERS), whole(1))
    add_evaluation(train)
    watching = add_watching(train, sinks=True)
    watching.add_argument("--wandb", action="store_true", default=None, help="also log to Weights & Biases")
    watching.add_argument("--no-wandb", dest="wandb", action="store_false", help="do not, whatever --config says")
    train.add_argument("--dry-run", action="store_true", help="print the configuration as JSON, and train nothing")
    add_deterministic(train)

    usage = f"runnel sweep {TRAINED}\n       runnel sweep --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    sweep = command("sweep", "search for the settings that train best", add_help=False, usage=usage)
    what = add_what_to_train(sweep, nargs="?")
    add_search(sweep)
    add_training(sweep, what)
    add_evaluation(sweep)
    add_watching(sweep, sinks=False)
    add_deterministic(sweep)

    about = "continue a run from its newest checkpoint"
    resume = command("resume", about, usage="runnel resume RUN_DIR [flags]")
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a run, or a directory of several")
    add_trust(resume)
    resume.add_argument("--steps", type=whole(1), metavar="N", help="the new total of environment steps")
    add_on_nan(resume, "as for train (what the run was begun with)")
    add_placement(resume)
    add_watching(resume, sinks=True)
    add_deterministic(resume)


def _add_playing_commands(command: AddCommand) -> None:
    about = "play a policy of a run, without exploration"
    evaluate = command("eval", about, usage="runnel eval RUN_DIR[@TAG] [flags]")
    evaluate.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="the newest policy, or the one of a tag")
    add_member(evaluate)
    add_trust(evaluate)
    playing = evaluate.add_argument_group("how it plays")
    playing.add_argument(
        "--set", action="append", default=[], metavar="env.key=value ...", help="other settings of the environment"
    )
    playing.add_argument("--explore", action="store_true", help="act as in training")
    playing.add_argument("--episodes", type=whole(1), default=10, metavar="N", help="number of episodes (10)")
    playing.add_argument(
        "--seed",
        type=whole(0, MOST_SEED),
        metavar="N",
        help="seed of the episodes (the run's seed + 10000)",
    )
    output = evaluate.add_argument_group("what it leaves")
    output.add_argument("--video", type=Path, metavar="FILE", help="film the first episode as .mp4 or .gif")
    output.add_argument("--out", type=Path, metavar="FILE", help="write all results into this file, as JSON")
    output.add_argument("--json", action="store_true", help="print all returns and lengths as JSON")

    about = "play two policies against each other, from every seat"
    versus = command("versus", about, usage="runnel versus A B [flags]")
    for name in ("a", "b"):
        versus.add_argument(name, metavar=name.upper(), help="RUN_DIR[@TAG], or a directory that holds a policy")
    versus.add_argument("--env", metavar="NAME", help="the game (that of A's run, with its settings)")
    versus.add_argument(
        "--set", action="append", default=[], metavar="env.key=value ...", help="other settings of the environment"
    )
    add = versus.add_argument
    add(
        "--episodes", type=whole(1, MOST_EPISODES), default=1000, metavar="N", help="number of games, rounded up (1000)"
    )
    add(
        "--openings",
        type=whole(0, 100_000),
        default=0,
        metavar="N",
        help="random openings, each played from every seat (0)",
    )
    add("--opening-moves", type=whole(1, 10_000), default=2, metavar="N", help="random legal moves of an opening (2)")
    add("--seed", type=whole(0, MOST_SEED), default=0, metavar="N", help="seed of games and openings (0)")
    add("--explore", action="store_true", help="both act as in training")
    add("--json", action="store_true", help="print everything as JSON")
    add_trust(versus)


def _add_storing_commands(command: AddCommand) -> None:
    """Those that look through stored policies and hand them on."""
    about = "list, filter and tag the policies that a run has stored"
    policies = command("policies", about, usage="runnel policies RUN_DIR[@TAG] [flags]")
    policies.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="a run, or one policy of it by its tag")
    add_member(policies)
    which = policies.add_argument_group("which")
    which.add_argument("--group", metavar="NAME", help="those of one group of agents")
    which.add_argument("--with-tag", metavar="TAG", help="those with this tag: latest, best or one of your own")
    which.add_argument("--version", type=whole(0), metavar="N", help="those of this version")
    which.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="those with this metadata; also >=, <=, > and <",
    )
    tags = policies.add_argument_group("tags")
    tags.add_argument("--tag", metavar="TAG", help="tag the policies that are listed; of several versions, the newest")
    tags.add_argument("--untag", metavar="TAG", help="remove a tag")
    policies.add_argument(
        "--payoffs", action="store_true", help="what they scored against each other in training, and their ratings"
    )
    policies.add_argument("--json", action="store_true", help="print everything as JSON")

    about = "write a policy of a run for programs without Runnel"
    export = command("export", about, usage="runnel export RUN_DIR[@TAG] --format FORMAT [flags]")
    export.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="the newest policy, or the one of a tag")
    export.add_argument("--format", choices=("stablehlo", "onnx"), required=True, help="for JAX, or for ONNX runtimes")
    export.add_argument("--out", type=Path, metavar="DIR", help="a new directory (./RUN[-GROUP][-TAG]-FORMAT)")
    export.add_argument("--group", metavar="NAME", help="the group of agents whose policy is exported")
    export.add_argument("--opset", type=whole(1, 1000), metavar="N", help="version of ONNX's operators (the newest)")
    add_member(export)
    add_trust(export)


def _add_showing_commands(command: AddCommand) -> None:
    about = "show what would run where, and what would cross each cut edge"
    plan = command("plan", about, add_help=False, usage=f"runnel plan {TRAINED}")
    add_what_to_train(plan)
    where = add_placement(plan)
    where.add_argument("--envs", type=whole(1, MOST_ENVS), metavar="N", help="total number of environments")
    where.add_argument(
        "--machines", type=machines, metavar="NAME=CPUS[+GPUS],...", help="plan for these machines, not for this one"
    )
    where.add_argument(
        "--eval-workers", type=whole(0, 1024), default=0, metavar="N", help="also place N evaluation workers (0)"
    )
    plan.add_argument("--format", choices=("text", "json", "svg"), default="text", help="(text)")

    about = "draw the returns of runs, or another metric, over their steps"
    plot = command("plot", about, usage="runnel plot RUN_DIR... --out FILE [flags]")
    plot.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run, or a directory of several")
    plot.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg or .pdf")
    plot.add_argument(
        "--metric", metavar="NAME", help="a metric of metrics.jsonl, such as env/is_success (mean_return)"
    )
    plot.add_argument("--payoffs", action="store_true", help="the scores of a run's policies against each other")

    about = "show runs in a browser while they train"
    dash = command("dash", about, usage="runnel dash [RUN_DIR ...] [flags]")
    dash.add_argument(
        "run_dirs", type=Path, nargs="*", metavar="RUN_DIR",
        help="runs, or directories of runs (runs/)",
    )  # fmt: skip
    dash.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1: only this machine)"
    )
    dash.add_argument(
        "--port", type=whole(0, 65535), default=8642, metavar="N", help="port to listen on; 0: a free one (8642)"
    )

    about = "list algorithms, distributions and environments, or the settings of one"
    listing = command("list", about, usage="runnel list [NAME] [--json]")
    what = "an algorithm, distribution or environment, to see its settings, or a family's prefix, to see its names"
    listing.add_argument("name", nargs="?", metavar="NAME", help=what)
    listing.add_argument("--json", action="store_true", help="print everything as JSON")

    bench = command("bench", "run benchmarks of a source checkout, or list them", usage="runnel bench [NAME ...]")
    bench.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run (list them)")


def _add_helping_commands(command: AddCommand) -> None:
    """Those that help with Runnel itself."""
    about = "check this machine: what is wrong, and how to correct it"
    doctor = command("doctor", about, usage="runnel doctor [--address HOST:PORT] [--json]")
    doctor.add_argument("--address", metavar="HOST:PORT", help="address of a Ray cluster to check (RAY_ADDRESS)")
    doctor.add_argument("--json", action="store_true", help="print everything as JSON")

    about = "print a page of the documentation, or one section of it"
    pages = command("help", about, usage="runnel help [PAGE[#SECTION]]")
    pages.add_argument("page", nargs="?", metavar="PAGE[#SECTION]", help="the page or section (list the pages)")

    about = "print a script with which a shell completes commands, flags and names"
    completion = command("completion", about, usage="runnel completion SHELL")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
