"""The command line's grammar: every command with its flags.

argparse, not tyro: tyro's errors are boxes of many lines where people and scripts want one, and it would
import every algorithm to know its settings.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from runnel import __version__
from runnel.cli import population_flags
from runnel.cli.flag_values import machines, number, or_none, seeds, whole
from runnel.cli.parser import Parser
from runnel.cli.shared_flags import (
    add_distribution,
    add_evaluation,
    add_launcher,
    add_member,
    add_on_nan,
    add_opponents,
    add_running,
    add_search,
    add_training,
    add_trust,
    add_what_to_train,
)
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED


def grammar() -> argparse.ArgumentParser:
    parser = Parser(prog="runnel", description="Distributed reinforcement learning: say it once, run it anywhere.")
    parser.add_argument("--version", action="version", version=f"runnel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str, **kwargs: Any) -> Parser:
        added = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", **kwargs)
        added.set_defaults(parser=added)
        return added

    what = "ALGORITHM ENVIRONMENT [flags]"
    usage = f"runnel train {what}\n       runnel train --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    train = command("train", "train an algorithm on an environment", add_help=False, usage=usage)
    add_what_to_train(train, nargs="?")
    add_training(train)
    train.add_argument("--dry-run", action="store_true", help="print the configuration as JSON, and train nothing")
    train.add_argument(
        "--seeds", type=seeds, metavar="N|A,B,...", help="train several runs: so many seeds from --seed on, or these"
    )
    population_flags.add(train, whole(2, MOST_MEMBERS), whole(1))
    train.add_argument("--stop-at-return", type=or_none(number), metavar="X", help="end at this mean of 100 episodes")
    train.add_argument("--wandb", action="store_true", default=None, help="show the run at Weights & Biases too")
    train.add_argument("--no-wandb", dest="wandb", action="store_false", help="not so, whatever --config says")
    evaluation = add_evaluation(train)
    evaluation.add_argument(
        "--stop-at-eval-return", type=or_none(number), metavar="X", help="end at this mean return of an evaluation"
    )
    add_running(train)

    usage = f"runnel sweep {what}\n       runnel sweep --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    sweep = command("sweep", "search for the settings that train best", add_help=False, usage=usage)
    add_what_to_train(sweep, nargs="?")
    add_search(sweep)
    add_training(sweep)
    add_evaluation(sweep)
    add_running(sweep)

    resume = command("resume", "go on with a run from its newest checkpoint")
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    add_trust(resume)
    resume.add_argument("--steps", type=whole(1), metavar="N", help="environment steps in all, if more or fewer")
    add_launcher(resume)
    add_on_nan(resume, "as for train (what the run was begun with)")
    add_distribution(resume)
    add_running(resume)

    evaluate = command("eval", "play a policy of a run, without exploration")
    evaluate.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="the newest policy, or the one of a tag")
    add_member(evaluate)
    add_trust(evaluate)
    evaluate.add_argument(
        "--set", action="append", default=[], metavar="env.key=value ...", help="other settings of the environment"
    )
    evaluate.add_argument("--explore", action="store_true", help="act as in training")
    evaluate.add_argument("--out", type=Path, metavar="FILE", help="write all results there, as JSON")
    evaluate.add_argument("--episodes", type=whole(1), default=10, metavar="N", help="how many to play (10)")
    evaluate.add_argument("--seed", type=whole(0, MOST_SEED), metavar="N", help="of the episodes (not of training)")
    evaluate.add_argument("--video", type=Path, metavar="FILE", help="film the first episode as .mp4 or .gif")
    evaluate.add_argument("--json", action="store_true", help="every return and length, for programs")

    versus = command("versus", "play two policies against each other, from every seat")
    for name in ("a", "b"):
        versus.add_argument(name, metavar=name.upper(), help="RUN_DIR[@TAG], or a directory that holds a policy")
    versus.add_argument("--env", metavar="NAME", help="the game (the one that A was trained on, with its settings)")
    versus.add_argument(
        "--set", action="append", default=[], metavar="env.key=value ...", help="other settings of the environment"
    )
    add = versus.add_argument
    add("--episodes", type=whole(1, MOST_EPISODES), default=1000, metavar="N", help="games, rounded up (1000)")
    add("--openings", type=whole(0, 100_000), default=0, metavar="N", help="random openings, from every seat each (0)")
    add("--opening-moves", type=whole(1, 10_000), default=2, metavar="N", help="random legal moves of an opening (2)")
    add("--seed", type=whole(0, MOST_SEED), default=0, metavar="N", help="of games and openings (0)")
    add("--explore", action="store_true", help="both act as in training")
    add("--json", action="store_true", help="all of it, for programs")
    add_trust(versus)

    policies = command("policies", "list, filter and tag the policies that a run has stored")
    policies.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="a run, or only what has a tag")
    add_member(policies)
    policies.add_argument("--group", metavar="NAME", help="those of one group of agents")
    policies.add_argument("--with-tag", metavar="TAG", help="those with this tag: latest, best or one of your own")
    policies.add_argument("--version", type=whole(0), metavar="N", help="those of this version")
    policies.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="those with such metadata; also >=, <=, > and <",
    )
    policies.add_argument(
        "--tag", metavar="TAG", help="tag the policies that are listed; of several versions, the newest"
    )
    policies.add_argument("--untag", metavar="TAG", help="remove a tag")
    policies.add_argument(
        "--payoffs", action="store_true", help="what they scored against each other in training, and their ratings"
    )
    policies.add_argument("--json", action="store_true", help="all of it, for programs")

    export = command("export", "write a policy of a run for programs without Runnel")
    export.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="the newest policy, or the one of a tag")
    export.add_argument("--format", choices=("stablehlo", "onnx"), required=True, help="for JAX, or for ONNX runtimes")
    export.add_argument("--out", type=Path, metavar="DIR", help="a new directory (./RUN[-GROUP][-TAG]-FORMAT)")
    export.add_argument("--group", metavar="NAME", help="of several groups of agents, whose policy")
    export.add_argument("--opset", type=whole(1, 1000), metavar="N", help="version of ONNX's operators (the newest)")
    add_member(export)
    add_trust(export)

    about = "show what would run where, and what would travel"
    plan = command("plan", about, add_help=False, usage=f"runnel plan {what}")
    add_what_to_train(plan)
    add_distribution(plan)
    plan.add_argument("--envs", type=whole(1, MOST_ENVS), metavar="N", help="environments in all")
    plan.add_argument(
        "--machines", type=machines, metavar="NAME=CPUS[+GPUS],...", help="plan for these, not for this machine"
    )
    add_opponents(plan)
    add_launcher(plan)
    plan.add_argument("--eval-workers", type=whole(0, 1024), default=0, metavar="N", help="also place so many (0)")
    plan.add_argument("--format", choices=("text", "json", "svg"), default="text", help="(text)")

    plot = command("plot", "draw the returns of runs, or another metric, over their steps")
    plot.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run, or a directory of several")
    plot.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg or .pdf")
    plot.add_argument("--metric", metavar="NAME", help="of metrics.jsonl: env/is_success (mean_return)")
    plot.add_argument("--payoffs", action="store_true", help="of one run: what its policies score against each other")

    bench = command("bench", "run benchmarks of a source checkout, or name them")
    bench.add_argument("names", nargs="*", metavar="NAME")

    listing = command("list", "name algorithms, distributions and environments")
    listing.add_argument("name", nargs="?", metavar="NAME", help="an algorithm or distribution, to see its settings")
    listing.add_argument("--json", action="store_true", help="all of it, for programs")
    return parser
