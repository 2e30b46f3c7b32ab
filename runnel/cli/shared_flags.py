"""The flags that several commands share: what to train, how, where and with which evaluation."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from runnel.cli.catalog import FLAGS
from runnel.cli.flag_values import launcher, or_none, seconds, seeds, whole
from runnel.cli.parser import HelpWithSettings, Parser
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED

NAMES = ("algorithm", "environment")
"""What `train` and `sweep` are given without a flag; with `--config` they may be left out."""


def add_opponents(parser: argparse.ArgumentParser) -> None:
    what = "past policies play too: latest, uniform, pfsp, psro, fixed, league, or your own matchmaker"
    parser.add_argument("--opponents", metavar="NAME", help=what)


def add_what_to_train(parser: argparse.ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    parser.add_argument("--help", "-h", action=HelpWithSettings)
    algorithm, environment = NAMES
    parser.add_argument(
        algorithm, nargs=nargs, metavar="ALGORITHM", help="a name of `runnel list`, or your package.module:Class"
    )
    parser.add_argument(
        environment, nargs=nargs, metavar="ENVIRONMENT", help="CartPole-v1, gymnax:CartPole-v1, package.module:f"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="key=value ...",
        help="settings of the algorithm; env.key=value, eval.env.key=value and distribution.key=value are of those",
    )


def add_training(parser: Parser) -> None:
    """What a run is asked for, alone or as one of several."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="train as the config.json of a run says; flags override it")
    add_trust(parser)
    add_distribution(parser)
    add("--envs", type=whole(1, MOST_ENVS), metavar="N", help="environments in all")
    add("--steps", type=whole(1), metavar="N", help="environment steps to train for")
    add("--seed", type=whole(0, MOST_SEED), metavar="N", help="of every random number (0)")
    add("--run-dir", type=Path, metavar="DIR", help="where it is kept (a new one under runs/)")
    add(
        "--init-from",
        action="append",
        metavar="[GROUP=]RUN_DIR[@TAG]",
        help="begin with the parameters of a stored policy",
    )
    add_opponents(parser)
    add(
        "--frozen",
        action="append",
        metavar="GROUP=RUN_DIR[@TAG]",
        help="a stored policy acts for a group, which does not learn",
    )
    add_launcher(parser)
    add_on_nan(parser, "end the run, skip the update, or go back to the newest checkpoint (stop)")
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


def add_search(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("search")
    add = search.add_argument
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
    add("--halving", type=whole(2, MOST_MEMBERS), metavar="N", help="train the best of every N trials further")
    add("--rungs", type=whole(2, 16), metavar="N", help="with --halving: how often trials are compared (3)")
    add("--winner-seeds", type=whole(0, MOST_MEMBERS), metavar="N", help="unseen seeds for the best settings (10)")


def add_distribution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--distribution", metavar="NAME", help="(fused on a JAX environment, else inline)")
    for flag, what in zip(FLAGS, ("actors or environment workers", "inference workers", "learners"), strict=True):
        parser.add_argument(f"--{flag}", type=whole(1), metavar="N", help=what)


def add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--member", type=whole(0, MOST_MEMBERS - 1), metavar="N", help="of a directory of several runs, which"
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="import code that the run names and that you have not signed by training with it: module:name",
    )


def add_on_nan(parser: argparse.ArgumentParser, does: str) -> None:
    parser.add_argument("--on-nan", choices=("stop", "skip", "rollback"), help=f"a loss or gradient is NaN: {does}")


def add_launcher(parser: Parser) -> None:
    parser.add_argument(
        "--launcher",
        type=launcher,
        metavar="local|ray|MODULE:CALLABLE",
        default="local",
        help="what starts the workers: this machine, a Ray cluster's machines, or a launcher of your own (local)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the Ray cluster, with --launcher ray (one that is found, or a new one)",
    )


def add_evaluation(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    evaluation = parser.add_argument_group(
        "evaluation", "of the policy while it is trained, without effect on training"
    )
    add = evaluation.add_argument
    add(
        "--eval-every",
        type=or_none(whole(1)),
        metavar="STEPS",
        help="evaluate so often, at the beginning and at the end",
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
        help="what makes a policy the best: return, return/GROUP, env/NAME, min:NAME",
    )
    kept = parser.add_argument_group("policies that are kept", "besides the newest and those that you tag")
    add = kept.add_argument
    add("--keep-every", type=or_none(whole(1)), metavar="STEPS", help="one of every so many environment steps")
    add(
        "--keep-every-seconds",
        dest="keep_every_s",
        type=or_none(seconds),
        metavar="SECONDS",
        help="one of every so many seconds",
    )
    add("--keep-best", type=whole(0, 1_000_000), metavar="N", help="those evaluated best (1)")
    return evaluation


def add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deterministic", action="store_true", help="bitwise the same again, on a GPU too")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
