"""The flags that several commands share: what to train, how, where, with which evaluation, and what to watch.

Each function adds a group of them, under a title of `--help`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal, get_args

from runnel.cli.catalog import FLAGS
from runnel.cli.flag_values import launcher, number, or_none, seconds, seeds, whole
from runnel.cli.parser import HelpWithSettings, Parser
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED, Precision

NAMES = ("algorithm", "environment")
"""What `train` and `sweep` are given without a flag; with `--config` they may be left out."""

Group = argparse._ArgumentGroup


def add_what_to_train(parser: Parser, nargs: Literal["?"] | None = None) -> Group:
    parser.add_argument("--help", "-h", action=HelpWithSettings)
    group = parser.add_argument_group("what to train")
    algorithm, environment = NAMES
    group.add_argument(
        algorithm, nargs=nargs, metavar="ALGORITHM", help="a name of `runnel list`, or your package.module:Class"
    )
    group.add_argument(
        environment, nargs=nargs, metavar="ENVIRONMENT", help="CartPole-v1, gymnax:CartPole-v1, package.module:f"
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="key=value ...",
        help="a setting of the algorithm; env.key=, eval.env.key= and distribution.key= set those of the others",
    )
    group.add_argument(
        "--opponents",
        metavar="NAME",
        help="past policies as opponents, by a matchmaker: latest, uniform, pfsp, psro, fixed, league, or your own",
    )
    return group


def add_training(parser: Parser, what: Group) -> Group:
    """What a run is asked for, alone or as one of several; the group of how long."""
    add = what.add_argument
    add("--config", type=Path, metavar="FILE", help="train with the config.json of a run; flags override it")
    add_trust(what)
    add(
        "--init-from",
        action="append",
        metavar="[GROUP=]RUN_DIR[@TAG]",
        help="begin with the parameters of a stored policy (new ones)",
    )
    add(
        "--frozen",
        action="append",
        metavar="GROUP=RUN_DIR[@TAG]",
        help="a stored policy acts for a group, which does not learn",
    )
    add("--seed", type=whole(0, MOST_SEED), metavar="N", help="seed of all random numbers (0)")
    add("--precision", choices=get_args(Precision), help="what networks compute in (float32)")
    long = parser.add_argument_group("how long")
    help = "environment steps to train for, one action each, summed over environments (500000)"
    long.add_argument("--steps", type=whole(1), metavar="N", help=help)
    where = add_placement(parser)
    help = "environments, shared by all workers (8 on the host, 64 in JAX, or as tuned)"
    where.add_argument("--envs", type=whole(1, MOST_ENVS), metavar="N", help=help)
    where.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="where the run is stored (a new directory under runs/)"
    )
    _add_failures(parser)
    return long


def _add_failures(parser: Parser) -> None:
    group = parser.add_argument_group("when something breaks")
    add_on_nan(group, "end the run, skip the update, or go back to the newest checkpoint (stop)")
    add = group.add_argument
    add(
        "--checkpoint-every",
        dest="checkpoint_every_s",
        type=seconds,
        metavar="SECONDS",
        help="how often to write a checkpoint (60)",
    )
    add(
        "--restarts",
        type=whole(0),
        metavar="N",
        help="lost workers that are replaced in ten minutes before the run ends (10)",
    )
    add(
        "--hang-after",
        dest="hang_after_s",
        type=seconds,
        metavar="SECONDS",
        help="replace a worker without a heartbeat for this long; under inline, end the run (120)",
    )


def add_search(parser: Parser) -> None:
    add = parser.add_argument_group("search").add_argument
    add(
        "--over",
        action="append",
        required=True,
        metavar="key=VALUES ...",
        help="settings to vary: log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH or A,B,C",
    )
    add("--trials", type=whole(1, MOST_MEMBERS), metavar="N", help="number of trials (32; with grid all combinations)")
    add("--sampler", choices=("tpe", "random", "grid"), help="how settings are proposed (tpe)")
    add("--batch", type=whole(1, MOST_MEMBERS), metavar="N", help="trials that are trained together (16)")
    add("--seeds", type=seeds, metavar="N|A,B,...", help="seeds of each trial: N from --seed on, or a list (3)")
    add("--halving", type=whole(2, MOST_MEMBERS), metavar="N", help="train the best of every N trials further (all)")
    add("--rungs", type=whole(2, 16), metavar="N", help="with --halving: the number of comparisons (3)")
    add(
        "--winner-seeds",
        type=whole(0, MOST_MEMBERS),
        metavar="N",
        help="unseen seeds on which the best settings are trained again (10)",
    )


def add_placement(parser: Parser) -> Group:
    """What runs where."""
    group = parser.add_argument_group("where it runs")
    what = "what runs where: a name of `runnel list`, or your own (fused on a JAX environment, else inline)"
    group.add_argument("--distribution", metavar="NAME", help=what)
    for flag, of in zip(FLAGS, ("actors or environment workers", "inference workers", "learners"), strict=True):
        group.add_argument(f"--{flag}", type=whole(1), metavar="N", help=f"{of}, where the distribution has them")
    group.add_argument(
        "--launcher",
        type=launcher,
        metavar="local|ray|MODULE:CALLABLE",
        default="local",
        help="what starts the workers: this machine, a Ray cluster's machines, or a launcher of your own (local)",
    )
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="address of the Ray cluster (one that is found, or a new one on this machine)",
    )
    return group


def add_member(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--member", type=whole(0, MOST_MEMBERS - 1), metavar="N", help="the number of the run in a directory of several"
    )


def add_trust(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="allow this code, module:name, which the run names and you have not signed by training with it",
    )


def add_on_nan(parser: argparse._ActionsContainer, does: str) -> None:
    parser.add_argument(
        "--on-nan", choices=("stop", "skip", "rollback"), help=f"when a loss, gradient or state is not finite: {does}"
    )


def add_evaluation(parser: Parser) -> None:
    add = parser.add_argument_group(
        "evaluation", "of the policy during training, without effect on training"
    ).add_argument
    add(
        "--eval-every",
        type=or_none(whole(1)),
        metavar="STEPS",
        help="how often to evaluate, besides the beginning and the end (never)",
    )
    add("--eval-episodes", type=whole(1, MOST_EPISODES), metavar="N", help="episodes of an evaluation (10)")
    add(
        "--eval-seed",
        type=or_none(whole(0, MOST_SEED)),
        metavar="N",
        help="seed of all evaluations (the run's seed + 10000)",
    )
    add(
        "--eval-workers",
        type=or_none(whole(0, 1024)),
        metavar="N",
        help="processes that evaluate (1 beside several workers, else 0)",
    )
    add("--eval-wait", action="store_true", default=None, help="training waits for every evaluation")
    add("--eval-explore", action="store_true", default=None, help="act as in training, not greedily")
    add(
        "--eval-metric",
        type=or_none(str),
        metavar="NAME",
        help="metric of the best policy: return, return/GROUP, length, env/NAME, min:NAME (return)",
    )
    kept = parser.add_argument_group("policies that are kept", "besides the newest and those that you tag")
    add = kept.add_argument
    add(
        "--keep-every",
        type=or_none(whole(1)),
        metavar="STEPS",
        help="keep one policy in this many environment steps (none)",
    )
    add(
        "--keep-every-seconds",
        dest="keep_every_s",
        type=or_none(seconds),
        metavar="SECONDS",
        help="keep one policy in this many seconds (none)",
    )
    add("--keep-best", type=whole(0, 1_000_000), metavar="N", help="keep the N best by evaluation (1)")


def add_stopping(long: Group) -> None:
    """Ends of a run alone, besides its steps."""
    add = long.add_argument
    add("--stop-at-return", type=or_none(number), metavar="X", help="end at this mean return of 100 episodes")
    help = "end at this mean return of an evaluation"
    add("--stop-at-eval-return", type=or_none(number), metavar="X", help=help)


def add_watching(parser: Parser, sinks: bool) -> Group:
    """How a run is followed while it lasts. `sinks`: whether it has metrics of its own to send."""
    group = parser.add_argument_group("what to watch")
    add = group.add_argument
    add("--metrics-port", type=whole(0, 65535), metavar="PORT", help="serve metrics for Prometheus; 0: a free port")
    add("--metrics-address", metavar="ADDRESS", help="address to listen on (127.0.0.1: only this machine)")
    if sinks:
        what = "also send metrics to a tracker: mlflow, trackio, one of an installed package, or module:callable"
        add("--sink", dest="sinks", action="append", metavar="NAME", help=what)
    add("--quiet", action="store_true", help="print nothing")
    return group


def add_deterministic(parser: Parser) -> None:
    parser.add_argument("--deterministic", action="store_true", help="make runs bitwise repeatable, on a GPU too")
