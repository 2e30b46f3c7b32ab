"""The command line's grammar: what can be asked for, in one place. `cli` does it.

argparse, not tyro: tyro's errors are boxes of many lines where people and scripts want one, and it would
import every algorithm to know its settings.
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from runnel import __version__
from runnel.cli import population_flags
from runnel.cli.catalog import FLAGS
from runnel.config import settings
from runnel.config.run_config import MOST_ENVS, MOST_EPISODES, MOST_MEMBERS, MOST_SEED, MOST_STEPS
from runnel.errors import UserError, did_you_mean, near, nearest, printable
from runnel.planning.machine import Machine


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What a command line asks for; ends the process with status 2 and a line where it cannot be read."""
    parser = _parser()
    args, unknown = parser.parse_known_args(_one_setting_each(argv))
    if args.command in CONFIGURED:
        unknown = _take_names(args, unknown)
    if unknown:
        # argparse would say this in the name of `runnel`, without a suggestion.
        args.parser.error(f"found '{unknown[0]}', which it does not take{_meant(unknown[0], args, argv)}")
    if args.command in CONFIGURED and args.config is None:
        missing = [name.upper() for name in NAMES if getattr(args, name) is None]
        if missing:
            args.parser.error(f"the following arguments are required: {', '.join(missing)}")
        if args.trust:
            args.parser.error("found --trust, which is for code that a --config file names")
    return args


NAMES = ("algorithm", "environment")
"""What `train` and `sweep` are given without a flag; with `--config` they may be left out."""

CONFIGURED = ("train", "sweep")
"""Commands that take `--config`."""


def _take_names(args: argparse.Namespace, unknown: list[str]) -> list[str]:
    """argparse gives up on names that may be left out where a flag stands between them: `ppo --seed 1 CartPole-v1`.

    Takes the names from what it did not understand; the rest.
    """
    rest = []
    for word in unknown:
        free = [name for name in NAMES if getattr(args, name) is None]
        if free and not word.startswith("-"):
            setattr(args, free[0], word)
        else:
            rest.append(word)
    return rest


FLAG_OF = {
    "checkpoint_every_s": "--checkpoint-every",
    "hang_after_s": "--hang-after",
    "keep_every_s": "--keep-every-seconds",
    "eval_env_settings": "--set eval.env",
}
"""By keyword of `train`: flags that are called otherwise."""


def in_flags(error: UserError) -> str:
    """An error's text with the keywords that it names as flags: `--envs 10`, where Python says `envs=10`."""
    text = str(error)
    for keyword in error.keywords:
        flag = FLAG_OF.get(keyword, f"--{keyword.replace('_', '-')}")
        text = re.sub(rf"\b{keyword}=([^\s,;:]*)", lambda found, flag=flag: f"{flag} {_bare(found[1])}".strip(), text)
    return text


def _bare(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') and value[:1] == value[-1:] else value


def _meant(word: str, args: argparse.Namespace, argv: Sequence[str]) -> str:
    """What may have been meant by a word that a command does not take: a flag of its own, or a setting."""
    if not word.startswith("-"):
        return ""
    flags = args.parser._option_string_actions
    name, _, value = word.partition("=")
    if not value and word in argv[:-1]:
        value = argv[argv.index(word) + 1]
    settings = _settings_of(args, argv)
    shown = {setting: f"--set {setting}={_typed(value, of)}" for setting, of in settings.items()}
    shown |= {flag.lstrip("-").replace("-", "_"): flag for flag in flags}
    key = name.lstrip("-").replace("-", "_")
    if key in shown:
        return did_you_mean([shown[key]])
    # `env_split` is found as `distribution.env_splits`.
    alike = near(key, [setting.removeprefix("distribution.") for setting in shown])
    found = [shown.get(each) or shown[f"distribution.{each}"] for each in alike]
    return did_you_mean(found) if found else nearest(name, flags)


def _settings_of(args: argparse.Namespace, argv: Sequence[str]) -> dict[str, str]:
    """The settings that `--set` takes of the algorithm and the distribution that were named, with their types."""
    from runnel import algorithms
    from runnel.cli import catalog

    if not hasattr(args, "set"):
        return {}
    # A flag that is not known leaves its value among the names: `--learning-rate 1e-3 ppo CartPole-v1`.
    algorithm = next((word for word in argv if algorithms.known_as(word) in algorithms.names()), None)
    algorithm = algorithm or getattr(args, "algorithm", None)
    found: dict[str, str] = {}
    for name, prefix in ((algorithm, ""), (getattr(args, "distribution", None), "distribution.")):
        with contextlib.suppress(UserError):
            entry = catalog.find(name) if name else None
            found |= {f"{prefix}{row.name}": row.type for row in (entry.settings if entry else ())}
    return {name: of for name, of in found.items() if name.removeprefix("distribution.") not in FLAGS}


def _typed(value: str, of: str) -> str:
    """The value that was given with a flag, as a setting of that type may have it."""
    if of == "bool":
        return value if value.lower() in ("true", "false") else "true"
    return "VALUE" if not value or re.match(r"-+[a-z]", value) else value


def _one_setting_each(argv: Sequence[str]) -> list[str]:
    """`--set a=1 b=2` as `--set=a=1 --set=b=2`: argparse would take names that follow for settings."""
    words: list[str] = []
    flag = ""  # whose values these are
    for word in argv:
        flag = flag if "=" in word and not word.startswith("-") else ""
        if flag and words[-1] == flag:
            words[-1] = f"{flag}={word}"
        else:
            words.append(f"{flag}={word}" if flag else word)
        flag = word if word in ("--set", "--over") else flag
    return words


class _Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            self.error(f"there is no command '{value}'{nearest(value, action.choices)}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        self.exit(2, printable(f"{self.prog}: {message} (see `{self.prog} --help`)\n"))


class _HelpWithSettings(argparse.Action):
    """`runnel train ppo --help`: the flags, and the settings of the algorithm named before."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="show this, and an algorithm's settings")

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: Any) -> None:
        parser.print_help()
        name = getattr(namespace, "algorithm", None)
        if name is not None:
            from runnel.cli import catalog

            print(f"\n{catalog.described(catalog.find(name))}")
        parser.exit()


def _machines(text: str) -> list[Machine]:
    """`a=8,b=16+2`: a has 8 CPUs, b 16 and two GPUs."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"([\w.-]+)=(\d{1,6})(?:\+(\d{1,4}))?", part.strip())
        if match is None or not int(match[2]):
            wanted = "a machine as in a=8 (8 CPUs) or b=16+2 (16 CPUs and 2 GPUs)"
            raise argparse.ArgumentTypeError(f"found '{part}', wanted {wanted}")
        devices = tuple(f"cuda:{i}" for i in range(int(match[3] or 0))) or ("cpu:0",)
        found.append(Machine(int(match[2]), devices, match[1]))
    return found


def _seeds(text: str) -> int | list[int]:
    """`16`, or `1,2,5`."""
    one = _whole(0, MOST_SEED)
    return [one(each) for each in text.split(",")] if "," in text else _whole(1, MOST_MEMBERS)(text)


def _whole(least: int, most: int = MOST_STEPS) -> Callable[[str], int]:
    """A whole number of `least` or more; 1_000_000 and 1e6 are such."""

    def read(text: str) -> int:
        wanted = f"a whole number of {least} or more"
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        try:
            value = settings.convert("", text, int)
        except UserError:
            raise argparse.ArgumentTypeError(f"found '{shown}', wanted {wanted}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"found {shown}, wanted {wanted}")
        if value > most:
            raise argparse.ArgumentTypeError(f"found {shown}, wanted at most {most}")
        return value

    return read


def _number(text: str) -> float:
    try:
        return settings.convert("", text, float)
    except UserError:
        raise argparse.ArgumentTypeError(f"found '{text}', wanted a finite number") from None


def _seconds(text: str) -> float:
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"found {text}, wanted more than 0 seconds")
    return value


NOTHING: Final = object()
"""The value of a flag that was given as `none`: it takes back what `--config` says. None is one that was not given."""


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: NOTHING if text.lower() == "none" else read(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="runnel", description="Distributed reinforcement learning: say it once, run it anywhere.")
    parser.add_argument("--version", action="version", version=f"runnel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str, **kwargs: Any) -> _Parser:
        added = commands.add_parser(name, help=help, description=help[0].upper() + help[1:] + ".", **kwargs)
        added.set_defaults(parser=added)
        return added

    what = "ALGORITHM ENVIRONMENT [flags]"
    usage = f"runnel train {what}\n       runnel train --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    train = command("train", "train an algorithm on an environment", add_help=False, usage=usage)
    _add_what_to_train(train, nargs="?")
    _add_training(train)
    train.add_argument("--dry-run", action="store_true", help="print the configuration as JSON, and train nothing")
    train.add_argument(
        "--seeds", type=_seeds, metavar="N|A,B,...", help="train several runs: so many seeds from --seed on, or these"
    )
    population_flags.add(train, _whole(2, MOST_MEMBERS), _whole(1))
    train.add_argument("--stop-at-return", type=_or_none(_number), metavar="X", help="end at this mean of 100 episodes")
    train.add_argument("--wandb", action="store_true", default=None, help="show the run at Weights & Biases too")
    train.add_argument("--no-wandb", dest="wandb", action="store_false", help="not so, whatever --config says")
    evaluation = _add_evaluation(train)
    evaluation.add_argument(
        "--stop-at-eval-return", type=_or_none(_number), metavar="X", help="end at this mean return of an evaluation"
    )
    _add_running(train)

    usage = f"runnel sweep {what}\n       runnel sweep --config FILE [ALGORITHM [ENVIRONMENT]] [flags]"
    sweep = command("sweep", "search for the settings that train best", add_help=False, usage=usage)
    _add_what_to_train(sweep, nargs="?")
    _add_search(sweep)
    _add_training(sweep)
    _add_evaluation(sweep)
    _add_running(sweep)

    resume = command("resume", "go on with a run from its newest checkpoint")
    resume.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    _add_trust(resume)
    resume.add_argument("--steps", type=_whole(1), metavar="N", help="environment steps in all, if more or fewer")
    _add_launcher(resume)
    _add_on_nan(resume, "as for train (what the run was begun with)")
    _add_distribution(resume)
    _add_running(resume)

    evaluate = command("eval", "play a policy of a run, without exploration")
    evaluate.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="the newest policy, or the one of a tag")
    _add_member(evaluate)
    _add_trust(evaluate)
    evaluate.add_argument(
        "--set", action="append", default=[], metavar="env.key=value ...", help="other settings of the environment"
    )
    evaluate.add_argument("--explore", action="store_true", help="act as in training")
    evaluate.add_argument("--out", type=Path, metavar="FILE", help="write all results there, as JSON")
    evaluate.add_argument("--episodes", type=_whole(1), default=10, metavar="N", help="how many to play (10)")
    evaluate.add_argument("--seed", type=_whole(0, MOST_SEED), metavar="N", help="of the episodes (not of training)")
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
    add("--episodes", type=_whole(1, MOST_EPISODES), default=1000, metavar="N", help="games, rounded up (1000)")
    add("--openings", type=_whole(0, 100_000), default=0, metavar="N", help="random openings, from every seat each (0)")
    add("--opening-moves", type=_whole(1, 10_000), default=2, metavar="N", help="random legal moves of an opening (2)")
    add("--seed", type=_whole(0, MOST_SEED), default=0, metavar="N", help="of games and openings (0)")
    add("--explore", action="store_true", help="both act as in training")
    add("--json", action="store_true", help="all of it, for programs")
    _add_trust(versus)

    policies = command("policies", "list, filter and tag the policies that a run has stored")
    policies.add_argument("run_dir", type=Path, metavar="RUN_DIR[@TAG]", help="a run, or only what has a tag")
    _add_member(policies)
    policies.add_argument("--group", metavar="NAME", help="those of one group of agents")
    policies.add_argument("--with-tag", metavar="TAG", help="those with this tag: latest, best or one of your own")
    policies.add_argument("--version", type=_whole(0), metavar="N", help="those of this version")
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
    export.add_argument("--opset", type=_whole(1, 1000), metavar="N", help="version of ONNX's operators (the newest)")
    _add_member(export)
    _add_trust(export)

    about = "show what would run where, and what would travel"
    plan = command("plan", about, add_help=False, usage=f"runnel plan {what}")
    _add_what_to_train(plan)
    _add_distribution(plan)
    plan.add_argument("--envs", type=_whole(1, MOST_ENVS), metavar="N", help="environments in all")
    plan.add_argument(
        "--machines", type=_machines, metavar="NAME=CPUS[+GPUS],...", help="plan for these, not for this machine"
    )
    _add_opponents(plan)
    _add_launcher(plan)
    plan.add_argument("--eval-workers", type=_whole(0, 1024), default=0, metavar="N", help="also place so many (0)")
    plan.add_argument("--format", choices=("text", "json", "svg"), default="text", help="(text)")

    plot = command("plot", "draw the returns of runs, or another metric, over their steps")
    plot.add_argument("run_dirs", type=Path, nargs="+", metavar="RUN_DIR", help="a run, or a directory of several")
    plot.add_argument("--out", type=Path, required=True, metavar="FILE", help=".png, .svg or .pdf")
    plot.add_argument("--metric", metavar="NAME", help="of metrics.jsonl: env/is_success (mean_return)")
    plot.add_argument("--payoffs", action="store_true", help="of one run: what its policies score against each other")

    dash = command("dash", "show runs in a browser while they train")
    dash.add_argument(
        "run_dirs", type=Path, nargs="*", default=[Path("runs")], metavar="RUN_DIR",
        help="runs, or directories of them (runs/)",
    )  # fmt: skip
    dash.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="listen there (127.0.0.1: this machine)")
    dash.add_argument("--port", type=_whole(0, 65535), default=8265, metavar="N", help="0: any that is free (8265)")

    bench = command("bench", "run benchmarks of a source checkout, or name them")
    bench.add_argument("names", nargs="*", metavar="NAME")

    listing = command("list", "name algorithms, distributions and environments")
    listing.add_argument("name", nargs="?", metavar="NAME", help="an algorithm or distribution, to see its settings")
    listing.add_argument("--json", action="store_true", help="all of it, for programs")
    return parser


def _add_opponents(parser: argparse.ArgumentParser) -> None:
    what = "past policies play too: latest, uniform, pfsp, psro, fixed, league, or your own matchmaker"
    parser.add_argument("--opponents", metavar="NAME", help=what)


def _add_what_to_train(parser: argparse.ArgumentParser, nargs: Literal["?"] | None = None) -> None:
    parser.add_argument("--help", "-h", action=_HelpWithSettings)
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


def _add_training(parser: _Parser) -> None:
    """What a run is asked for, alone or as one of several."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="train as the config.json of a run says; flags override it")
    _add_trust(parser)
    _add_distribution(parser)
    add("--envs", type=_whole(1, MOST_ENVS), metavar="N", help="environments in all")
    add("--steps", type=_whole(1), metavar="N", help="environment steps to train for")
    add("--seed", type=_whole(0, MOST_SEED), metavar="N", help="of every random number (0)")
    add("--run-dir", type=Path, metavar="DIR", help="where it is kept (a new one under runs/)")
    add(
        "--init-from",
        action="append",
        metavar="[GROUP=]RUN_DIR[@TAG]",
        help="begin with the parameters of a stored policy",
    )
    _add_opponents(parser)
    add(
        "--frozen",
        action="append",
        metavar="GROUP=RUN_DIR[@TAG]",
        help="a stored policy acts for a group, which does not learn",
    )
    _add_launcher(parser)
    _add_on_nan(parser, "end the run, skip the update, or go back to the newest checkpoint (stop)")
    add(
        "--checkpoint-every",
        dest="checkpoint_every_s",
        type=_seconds,
        metavar="SECONDS",
        help="write one this often (60)",
    )
    add("--restarts", type=_whole(0), metavar="N", help="replace so many lost workers in ten minutes, then end (10)")
    add(
        "--hang-after",
        dest="hang_after_s",
        type=_seconds,
        metavar="SECONDS",
        help="replace a worker that gives no sign of life for so long; inline ends instead (120)",
    )


def _add_search(parser: argparse.ArgumentParser) -> None:
    search = parser.add_argument_group("search")
    add = search.add_argument
    add(
        "--over",
        action="append",
        required=True,
        metavar="key=VALUES ...",
        help="settings to vary: log:LOW:HIGH, LOW:HIGH, int:LOW:HIGH or A,B,C",
    )
    add("--trials", type=_whole(1, MOST_MEMBERS), metavar="N", help="settings to try (32; all points of a grid)")
    add("--sampler", choices=("tpe", "random", "grid"), help="what proposes them (tpe)")
    add("--batch", type=_whole(1, MOST_MEMBERS), metavar="N", help="trials that are trained together (16)")
    add("--seeds", type=_seeds, metavar="N|A,B,...", help="of each trial: so many from --seed on, or these (3)")
    add("--halving", type=_whole(2, MOST_MEMBERS), metavar="N", help="train the best of every N trials further")
    add("--rungs", type=_whole(2, 16), metavar="N", help="with --halving: how often trials are compared (3)")
    add("--winner-seeds", type=_whole(0, MOST_MEMBERS), metavar="N", help="unseen seeds for the best settings (10)")


def _add_distribution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--distribution", metavar="NAME", help="(fused on a JAX environment, else inline)")
    for flag, what in zip(FLAGS, ("actors or environment workers", "inference workers", "learners"), strict=True):
        parser.add_argument(f"--{flag}", type=_whole(1), metavar="N", help=what)


def _add_member(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--member", type=_whole(0, MOST_MEMBERS - 1), metavar="N", help="of a directory of several runs, which"
    )


def _add_trust(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trust",
        action="append",
        default=[],
        metavar="NAME",
        help="import code that the run names and that you have not signed by training with it: module:name",
    )


def _add_on_nan(parser: argparse.ArgumentParser, does: str) -> None:
    parser.add_argument("--on-nan", choices=("stop", "skip", "rollback"), help=f"a loss or gradient is NaN: {does}")


def _launcher(text: str) -> str:
    if text not in ("local", "ray") and ":" not in text:
        raise argparse.ArgumentTypeError(f"'{text}' is not known; use local, ray or package.module:callable")
    return text


def _add_launcher(parser: _Parser) -> None:
    parser.add_argument(
        "--launcher",
        type=_launcher,
        metavar="local|ray|MODULE:CALLABLE",
        default="local",
        help="what starts the workers: this machine, a Ray cluster's machines, or a launcher of your own (local)",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the Ray cluster, with --launcher ray (one that is found, or a new one)",
    )


def _add_evaluation(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    evaluation = parser.add_argument_group(
        "evaluation", "of the policy while it is trained, without effect on training"
    )
    add = evaluation.add_argument
    add(
        "--eval-every",
        type=_or_none(_whole(1)),
        metavar="STEPS",
        help="evaluate so often, at the beginning and at the end",
    )
    add("--eval-episodes", type=_whole(1, MOST_EPISODES), metavar="N", help="episodes of an evaluation (10)")
    add(
        "--eval-seed",
        type=_or_none(_whole(0, MOST_SEED)),
        metavar="N",
        help="of all evaluations (the run's seed + 10000)",
    )
    add(
        "--eval-workers",
        type=_or_none(_whole(0, 1024)),
        metavar="N",
        help="processes (1 beside several workers, else 0)",
    )
    add("--eval-wait", action="store_true", default=None, help="training waits for every evaluation")
    add("--eval-explore", action="store_true", default=None, help="act as in training, not greedily")
    add(
        "--eval-metric",
        type=_or_none(str),
        metavar="NAME",
        help="what makes a policy the best: return, return/GROUP, env/NAME, min:NAME",
    )
    kept = parser.add_argument_group("policies that are kept", "besides the newest and those that you tag")
    add = kept.add_argument
    add("--keep-every", type=_or_none(_whole(1)), metavar="STEPS", help="one of every so many environment steps")
    add(
        "--keep-every-seconds",
        dest="keep_every_s",
        type=_or_none(_seconds),
        metavar="SECONDS",
        help="one of every so many seconds",
    )
    add("--keep-best", type=_whole(0, 1_000_000), metavar="N", help="those evaluated best (1)")
    return evaluation


def _add_running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deterministic", action="store_true", help="bitwise the same again, on a GPU too")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
