"""The flags that several commands share: what to train, how, where, with which evaluation, and what to watch.

Each function adds a group of them, under a title of `--help`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from runnel.cli.catalog import FLAGS
from runnel.cli.flag_values import launcher, number, or_none, seconds, seeds, whole
from runnel.cli.parser import HelpWithSettings, Parser
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED

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
        help="settings of the algorithm; env.key=value, eval.env.key=value and distribution.key=value are of those",
    )
    group.add_argument(
        "--opponents",
        metavar="NAME",
        help="past policies play too: latest, uniform, pfsp, psro, fixed, league, or your own matchmaker",
    )
    return group


def add_training(parser: Parser, what: Group) -> Group:
    """What a run is asked for, alone or as one of several; the group of how long."""
    add = what.add_argument
    add("--config", type=Path, metavar="FILE", help="train as the config.json of a run says; flags override it")
    add_trust(what)
    add(
        "--init-from",
        action="append",
        metavar="[GROUP=]RUN_DIR[@TAG]",
        help="begin with the parameters of a stored policy (fresh ones)",
    )
    add(
        "--frozen",
        action="append",
        metavar="GROUP=RUN_DIR[@TAG]",
        help="a stored policy acts for a group, which does not learn",
    )
    add("--seed", type=whole(0, MOST_SEED), metavar="N", help="of every random number (0)")
    long = parser.add_argument_group("how long")
    help = "environment steps to train for, one action each, summed over environments (500000)"
    long.add_argument("--steps", type=whole(1), metavar="N", help=help)
    where = add_placement(parser)
    help = "environments in all, however many workers share them (8 on the host, 64 in JAX, or as tuned)"
    where.add_argument("--envs", type=whole(1, MOST_ENVS), metavar="N", help=help)
    where.add_argument("--run-dir", type=Path, metavar="DIR", help="where it is kept (a new one under runs/)")
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
        help="write one this often (60)",
    )
    add("--restarts", type=whole(0), metavar="N", help="replace so many lost workers in ten minutes, then end (10)")
    add(
        "--hang-after",
        dest="hang_after_s",
        type=seconds,
        metavar="SECONDS",
        help="replace a worker that gives no sign of life for so long; inline ends instead (120)",
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
    add("--trials", type=whole(1, MOST_MEMBERS), metavar="N", help="settings to try (32; all points of a grid)")
    add("--sampler", choices=("tpe", "random", "grid"), help="what proposes them (tpe)")
    add("--batch", type=whole(1, MOST_MEMBERS), metavar="N", help="trials that are trained together (16)")
    add("--seeds", type=seeds, metavar="N|A,B,...", help="of each trial: so many from --seed on, or these (3)")
    add("--halving", type=whole(2, MOST_MEMBERS), metavar="N", help="train the best of every N trials further (all)")
    add("--rungs", type=whole(2, 16), metavar="N", help="with --halving: how often trials are compared (3)")
    add("--winner-seeds", type=whole(0, MOST_MEMBERS), metavar="N", help="unseen seeds for the best settings (10)")


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
        help="of the Ray cluster, with --launcher ray (one that is found, or a new one)",
    )
    return group


def add_member(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--member", type=whole(0, MOST_MEMBERS - 1), metavar="N", help="of a directory of several runs, which"
    )


def add_trust(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="import code that the run names and that you have not signed by training with it: module:name",
    )


def add_on_nan(parser: argparse._ActionsContainer, does: str) -> None:
    parser.add_argument("--on-nan", choices=("stop", "skip", "rollback"), help=f"a loss or gradient is NaN: {does}")


def add_evaluation(parser: Parser) -> None:
    add = parser.add_argument_group(
        "evaluation", "of the policy while it is trained, without effect on training"
    ).add_argument
    add(
        "--eval-every",
        type=or_none(whole(1)),
        metavar="STEPS",
        help="evaluate so often, at the beginning and at the end (never)",
    )
    add("--eval-episodes", type=whole(1, MOST_EPISODES), metavar="N", help="episodes of an evaluation (10)")
    add(
        "--eval-seed",
        type=or_none(whole(0, MOST_SEED)),
        metavar="N",
        help="of all evaluations (the run's seed + 10000)",
    )
    add(
        "--eval-workers",
        type=or_none(whole(0, 1024)),
        metavar="N",
        help="processes (1 beside several workers, else 0)",
    )
    add("--eval-wait", action="store_true", default=None, help="training waits for every evaluation")
    add("--eval-explore", action="store_true", default=None, help="act as in training, not greedily")
    add(
        "--eval-metric",
        type=or_none(str),
        metavar="NAME",
        help="what makes a policy the best: return, return/GROUP, env/NAME, min:NAME (return)",
    )
    kept = parser.add_argument_group("policies that are kept", "besides the newest and those that you tag")
    add = kept.add_argument
    add("--keep-every", type=or_none(whole(1)), metavar="STEPS", help="one of every so many environment steps (none)")
    add(
        "--keep-every-seconds",
        dest="keep_every_s",
        type=or_none(seconds),
        metavar="SECONDS",
        help="one of every so many seconds (none)",
    )
    add("--keep-best", type=whole(0, 1_000_000), metavar="N", help="those evaluated best (1)")


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
    add("--metrics-port", type=whole(0, 65535), metavar="PORT", help="serve metrics to Prometheus; 0: any that is free")
    add("--metrics-address", metavar="ADDRESS", help="of this machine, for that port (127.0.0.1: this machine alone)")
    if sinks:
        what = "send metrics to a tracker too: mlflow, trackio, one of an installed package, or package.module:callable"
        add("--sink", dest="sinks", action="append", metavar="NAME", help=what)
    add("--quiet", action="store_true", help="print nothing")
    return group


def add_deterministic(parser: Parser) -> None:
    parser.add_argument("--deterministic", action="store_true", help="bitwise the same again, on a GPU too")
