"""The command line: `runnel train`, `sweep`, `resume`, `eval`, `versus` and more.

Everything is imported when a command needs it, so that `runnel --help` and `runnel list` answer without JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.cli import arguments, population_flags
from runnel.cli.catalog import FLAGS
from runnel.config import serialization, settings
from runnel.deprecated import Renamed
from runnel.errors import EnvironmentFailed, RunFailed, UserError, WorkerFailed, nearest, printable
from runnel.system import startup
from runnel.system.exits import contained
from runnel.system.limits import LEAST, check_descriptors
from runnel.user_code import named_modules

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm
    from runnel.planning.plan import Distribution

PACKAGE = Path(__file__).resolve().parents[1]
BENCHMARKS = PACKAGE.parent / "benchmarks"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status: 2 for a user's mistake, reported in one or two lines."""
    argv = list(sys.argv[1:] if argv is None else argv)
    command = "runnel"
    try:
        check_descriptors(LEAST)
        args = arguments.parse(argv)
        command = f"runnel {args.command}"
        with contained(), _saying_what_takes_long(args), _showing_old_names(command):
            named_modules.keep_settings_out()
            return COMMANDS[args.command](args)
    except UserError as error:
        # A line or two, whatever a library put into its reason.
        _complain(f"{command}: " + "\n".join(arguments.in_flags(error).strip().splitlines()[:2]))
        return 2
    except (EnvironmentFailed, RunFailed, WorkerFailed) as error:
        _complain(f"{command}: {error}")  # with the worker's own traceback, and none of this process's
        return 1
    except FileNotFoundError:
        if os.path.exists("."):
            raise
        _complain(f"{command}: the working directory was removed; change to one that exists")
        return 2
    except KeyboardInterrupt as stopped:
        return getattr(stopped, "status", 130)
    except BrokenPipeError:
        return 1
    finally:
        _let_go()


def _saying_what_takes_long(args: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Before anything else is imported: that alone may take seconds."""
    if args.command not in ("train", "sweep", "resume", "eval", "versus", "export", "plan"):
        return contextlib.nullcontext()
    # What the others print is their result.
    shows = args.command in ("train", "sweep", "resume") and not getattr(args, "dry_run", False)
    return startup.starting(getattr(args, "quiet", False), None if shows else sys.stderr, "importing JAX")


@contextlib.contextmanager
def _showing_old_names(command: str) -> Iterator[None]:
    """Prints a line for each old name that is used. Python itself shows such warnings to authors of scripts alone."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(message: Warning | str, category: type[Warning], filename: str, lineno: int, *rest: Any) -> None:
            if not issubclass(category, Renamed):
                return show(message, category, filename, lineno, *rest)
            where = "" if Path(filename).is_relative_to(PACKAGE) else f" ({filename}, line {lineno})"
            return _complain(f"{command}: {message}{where}")

        if not sys.warnoptions:
            warnings.simplefilter("default", Renamed)
            warnings.showwarning = shown
        yield


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed terminal takes nothing any more
        print(printable(text), file=sys.stderr, flush=True)


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


# Commands


def _train(args: argparse.Namespace) -> int:
    from runnel.execution.training import resolve, train

    _check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    algorithm, environment, asked = _asked(args)
    asked |= _given(args, "stop_at_return", "stop_at_eval_return", "wandb")
    rule = population_flags.rule_of(args)
    if rule is not None:
        return _train_population(args, rule, algorithm, environment, asked)
    if args.seeds is not None:
        if args.dry_run:
            raise UserError("found --dry-run and --seeds; --dry-run shows one run: leave --seeds out")
        return _train_members(args, algorithm, environment, asked)
    if args.dry_run:
        if args.launcher != "local":
            raise UserError(
                f"found --dry-run and --launcher {args.launcher}; --dry-run plans for this machine: leave --launcher "
                "out, or use `runnel plan` with it"
            )
        print(json.dumps(resolve(algorithm, environment, **asked), indent=2, allow_nan=False))
        return 0
    run = train(algorithm, environment, launcher=args.launcher, address=args.address, quiet=args.quiet, **asked)
    return _status(run.result)


def _train_members(args: argparse.Namespace, algorithm: Any, environment: Any, asked: dict[str, Any]) -> int:
    from runnel.execution.members import train_members

    members = train_members(
        algorithm, environment, seeds=args.seeds, launcher=args.launcher, address=args.address, quiet=args.quiet,
        **asked,
    )  # fmt: skip
    return _status(members.result)


def _train_population(
    args: argparse.Namespace, rule: Any, algorithm: Any, environment: Any, asked: dict[str, Any]
) -> int:
    from runnel.execution.population_training import train_population

    members = train_population(
        algorithm, environment, rule=rule, members=args.population, launcher=args.launcher, address=args.address,
        quiet=args.quiet, **asked,
    )  # fmt: skip
    return _status(members.result)


def _sweep(args: argparse.Namespace) -> int:
    from runnel.execution.sweep import sweep

    _check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    args.wandb = None
    algorithm, environment, asked = _asked(args)
    found = sweep(
        algorithm, environment, over=args.over, launcher=args.launcher, address=args.address, quiet=args.quiet,
        **_given(args, "trials", "sampler", "batch", "seeds", "halving", "rungs", "winner_seeds"), **asked,
    )  # fmt: skip
    return _status(found.result)


def _asked(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The algorithm, the environment, and what flags and `--config` ask for besides."""
    found = _from_file(args) if args.config is not None else {}
    algorithm, environment = (found.pop(name, getattr(args, name)) for name in arguments.NAMES)
    asked = _settings(args, algorithm, found.get("distribution"), found.get("env_settings"))
    algorithm, asked["settings"] = _for_each_group(algorithm, environment, asked["settings"])
    return algorithm, environment, {
        **found,
        **asked,
        **_given(args, "envs", "steps", "seed", "run_dir"),
        **_given(args, "checkpoint_every_s", "restarts", "hang_after_s", "on_nan"),
        **_given(args, "eval_every", "eval_episodes", "eval_seed", "eval_workers", "eval_metric"),
        **_given(args, "keep_every", "keep_every_s", "keep_best", "eval_wait", "eval_explore"),
        **_stored(args, found),
    }  # fmt: skip


def _for_each_group(algorithm: Any, environment: Any, own: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An algorithm and its settings, where those for each group are one algorithm."""
    if not isinstance(algorithm, str) or "=" not in algorithm:
        return algorithm, own
    from runnel.execution.group_algorithms import resolved

    algorithm, rest = resolved(algorithm, environment, own)
    return algorithm, rest or {}


def _from_file(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `train` that `--config` asks for."""
    from runnel.execution import config_file

    return config_file.arguments(
        args.config,
        **_given(args, *arguments.NAMES, "distribution", "wandb"),
        trust=args.trust,
        note=lambda text: None if args.quiet else _complain(f"runnel {args.command}: {text}"),
    )


def _check_address(args: argparse.Namespace) -> None:
    if args.address is not None and args.launcher != "ray":
        raise UserError(f"found --address {args.address}, which is that of a Ray cluster; add --launcher ray")


def _resume(args: argparse.Namespace) -> int:
    from runnel.execution.building import read_config
    from runnel.execution.training import resume
    from runnel.recording.members_file import holds_members
    from runnel.recording.sweep_file import holds_sweep

    _check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    if holds_sweep(args.run_dir):
        return _resume_sweep(args)
    if holds_members(args.run_dir):
        return _resume_members(args)
    distribution = _distribution(args, (), partial(_recorded_distribution, args, read_config(args.run_dir)))
    run = resume(
        args.run_dir, steps=args.steps, distribution=distribution, on_nan=args.on_nan, launcher=args.launcher,
        address=args.address, quiet=args.quiet, trust=args.trust,
    )  # fmt: skip
    return _status(run.result)


def _resume_members(args: argparse.Namespace) -> int:
    from runnel.execution.members import resume_members
    from runnel.execution.population_training import resume_population
    from runnel.recording.population_file import is_population

    given = [*_given(args, "distribution", "on_nan", *FLAGS)]
    if given:
        raise UserError(
            f"{args.run_dir} holds several runs; found --{given[0].replace('_', '-')}, which can be given for one of "
            "them: name its directory"
        )
    resume = resume_population if is_population(args.run_dir) else resume_members
    members = resume(
        args.run_dir, steps=args.steps, quiet=args.quiet, trust=args.trust, launcher=args.launcher, address=args.address
    )
    return _status(members.result)


def _resume_sweep(args: argparse.Namespace) -> int:
    from runnel.execution.sweep import resume_sweep

    given = [*_given(args, "steps", "distribution", "on_nan", *FLAGS)]
    if given:
        raise UserError(
            f"{args.run_dir} holds a sweep, which goes on as it was begun; found --{given[0].replace('_', '-')}: leave "
            "it out, or name the directory of one member"
        )
    found = resume_sweep(args.run_dir, quiet=args.quiet, trust=args.trust, launcher=args.launcher, address=args.address)
    return _status(found.result)


def _eval(args: argparse.Namespace) -> int:
    from runnel.evaluation.evaluate import evaluate
    from runnel.recording.files import write_json_atomically
    from runnel.reporting.live_view import short

    def note(text: str) -> None:
        print(printable(text), file=sys.stderr)

    found = evaluate(
        args.run_dir, args.episodes, args.seed, args.video, note, member=args.member,
        env_settings=_env_settings_alone(args), explore=args.explore, trust=args.trust,
    )  # fmt: skip
    if args.out is not None:
        write_json_atomically(args.out.absolute(), found)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    low, high, deviation = (short(found[f"{what}_return"]) for what in ("min", "max", "std"))
    interval = " to ".join(map(short, found["return_interval"]))
    tag = "" if found["tag"] == str(found["version"]) else f"{found['tag']}: "
    which = f"{tag}version {found['version']}, {found['env_steps']:,} steps"
    print(printable(f"{found['algorithm']} on {found['environment']}, {which}"))
    print(printable(f"  policy      {found['policy']}"))
    print(f"  return      {short(found['mean_return'])} ({interval}, 95%), mean of {found['episodes']} episodes")
    print(f"  spread      from {low} to {high}, standard deviation {deviation}")
    for group, value in found.get("group_returns", {}).items():
        print(printable(f"    {group:<9} {short(value)}"))
    print(f"  length      {short(found['mean_length'])} steps")
    for name, value in found["env"].items():
        print(printable(f"  env/{name:<7} {'-' if value is None else short(value)}"))
    if found["video"]:
        print(f"  video       {found['video']}")
    return 0


def _versus(args: argparse.Namespace) -> int:
    from runnel.cli import match_tables
    from runnel.evaluation.versus import versus

    def note(text: str) -> None:
        _complain(f"runnel versus: {text}")

    found = versus(
        args.a, args.b, args.env, episodes=args.episodes, openings=args.openings, opening_moves=args.opening_moves,
        seed=args.seed, explore=args.explore, env_settings=_env_settings_alone(args), note=note, trust=args.trust,
    )  # fmt: skip
    print(json.dumps(found, indent=2) if args.json else printable("\n".join(match_tables.versus_lines(found))))
    return 0


def _policies(args: argparse.Namespace) -> int:
    from runnel.cli import policy_table
    from runnel.evaluation.loading import policies
    from runnel.execution.stored_policies import split_name

    run_dir, tag = split_name(args.run_dir, "")
    if tag and args.with_tag is not None:
        raise UserError(f"found '{args.run_dir}' beside --with-tag {args.with_tag}, expected one of them")
    tag = tag or args.with_tag or ""
    store = policies(run_dir, args.member)
    if args.payoffs:
        return _payoffs(args, store.run_dir)
    where = policy_table.conditions(args.where)
    found = policy_table.query(store, args.group, tag, args.version, where)
    if args.untag is not None:
        store.untag(args.untag)
        found = [each for snapshot in found for each in store.query(snapshot.group, version=snapshot.version)]
    if args.tag is not None:
        found = policy_table.tag(store, found, args.tag)
    if args.json:
        print(json.dumps([policy_table.as_json(snapshot) for snapshot in found], indent=2))
    else:
        print(printable("\n".join(policy_table.lines(found, store.run_dir))))
    return 0


def _payoffs(args: argparse.Namespace, run_dir: Path) -> int:
    """What `runnel policies --payoffs` prints."""
    from runnel.cli import match_tables
    from runnel.reporting.payoff_report import read_payoffs

    given = [*_given(args, "group", "with_tag", "version", "tag", "untag"), *(["where"] if args.where else [])]
    if given:
        raise UserError(f"found --{given[0].replace('_', '-')} beside --payoffs, which shows all results; leave it out")
    found = read_payoffs(run_dir)
    if args.json:
        print(json.dumps(match_tables.payoffs_json(found, run_dir), indent=2, allow_nan=False))
    else:
        print(printable("\n".join(line for each in found for line in match_tables.payoff_lines(each))))
    return 0


def _export(args: argparse.Namespace) -> int:
    from runnel.evaluation.export import export

    made = export(
        args.run_dir, args.out, args.format, group=args.group, member=args.member, opset=args.opset, trust=args.trust
    )
    print(printable(str(made)))
    return 0


def _plan(args: argparse.Namespace) -> int:
    from runnel.execution.building import build
    from runnel.planning.plan import with_evaluation

    _check_address(args)
    machines = args.machines
    if machines is not None and args.launcher == "ray":
        raise UserError(
            "found --machines and --launcher ray, wanted one: machines that you name, or those of a cluster"
        )
    if args.launcher not in ("local", "ray"):
        raise UserError(f"found --launcher {args.launcher}, whose machines are known once it starts; use --machines")
    if args.launcher == "ray":
        from runnel.launch.ray_launcher import machines as found

        machines = found(args.address)
    asked = _settings(args, args.algorithm)
    algorithm, asked["settings"] = _for_each_group(args.algorithm, args.environment, asked["settings"])
    plan = build(algorithm, args.environment, envs=args.envs, machine=machines, **asked).plan
    plan = with_evaluation(plan, args.eval_workers)
    if args.format == "json":
        print(json.dumps(plan.json(), indent=2))
    elif args.format == "svg":
        from runnel.planning.svg import svg

        print(printable(svg(plan)), end="")
    else:
        print(printable(plan.text()))
    return 0


def _plot(args: argparse.Namespace) -> int:
    from runnel.reporting.comparison import comparisons
    from runnel.reporting.payoff_plot import plot_payoffs
    from runnel.reporting.plot import plot

    def note(text: str) -> None:
        _complain(f"runnel plot: {text}")

    if args.payoffs:
        if len(args.run_dirs) > 1 or args.metric is not None:
            what = "--metric" if args.metric is not None else f"{len(args.run_dirs)} runs"
            raise UserError(f"found {what} beside --payoffs, expected one run alone")
        print(plot_payoffs(args.run_dirs[0], args.out))
        return 0
    print(plot(args.run_dirs, args.out, **_given(args, "metric"), note=note))
    for line in comparisons(args.run_dirs):
        print(printable(line))
    return 0


def _dash(args: argparse.Namespace) -> int:
    from runnel.dash.server import serve

    def say(address: str) -> None:
        shown = ", ".join(map(str, args.run_dirs))
        print(printable(f"{shown} at {address}"), flush=True)
        print("the token in it allows checkpoints and stops; end with Ctrl-C", flush=True)

    serve(args.run_dirs, args.host, args.port, say)
    return 0


def _bench(args: argparse.Namespace) -> int:
    import ast
    import subprocess

    from runnel.cli import catalog

    scripts = {path.stem: path for path in sorted(BENCHMARKS.glob("*.py")) if not path.stem.startswith("_")}
    if not scripts:
        raise UserError(f"{BENCHMARKS} has no benchmarks; they come with a source checkout, not with the package")
    if not args.names:
        docs = {name: ast.get_docstring(ast.parse(path.read_bytes())) or "" for name, path in scripts.items()}
        print("\n".join(catalog.table([(name, doc.partition("\n")[0]) for name, doc in docs.items()])))
        return 0
    for name in args.names:
        if name not in scripts:
            raise UserError(f"there is no benchmark '{name}'{nearest(name, scripts)}")
    commands = [[sys.executable, str(scripts[name])] for name in args.names]
    statuses = [subprocess.run(command, check=False).returncode for command in commands]
    return next((status for status in statuses if status), 0)


def _list(args: argparse.Namespace) -> int:
    from runnel.cli import catalog

    if args.name is not None:
        entry = catalog.find(args.name)
        print(json.dumps(catalog.plain(entry), indent=2) if args.json else catalog.described(entry))
        return 0
    if args.json:
        print(json.dumps(catalog.as_json(), indent=2))
        return 0
    distributions = [(d.name, _noted(d.summary, " ".join(f"--{f}" for f in d.flags))) for d in catalog.distributions()]
    names = [name for name, _ in distributions]
    algorithms = [
        (a.name, _noted(a.summary, f"{', '.join(a.actions)}; {catalog.most_of(a.distributions, names)}"))
        for a in catalog.algorithms()
    ]
    environments = [(scheme.name, scheme.summary) for scheme in catalog.environments()]
    lines = ["algorithms [kinds of action; the distributions they run under]", *catalog.table(algorithms)]
    lines += ["", "distributions [their flags]", *catalog.table(distributions)]
    lines += ["", "environments", *catalog.table(environments)]
    lines += ["", "`runnel list NAME` shows the settings of an algorithm or distribution"]
    print("\n".join(lines))
    return 0


def _noted(text: str, note: str) -> str:
    return f"{text} [{note}]" if note else text


COMMANDS = {
    "train": _train,
    "sweep": _sweep,
    "resume": _resume,
    "eval": _eval,
    "versus": _versus,
    "policies": _policies,
    "export": _export,
    "plan": _plan,
    "plot": _plot,
    "dash": _dash,
    "bench": _bench,
    "list": _list,
}


# What they share


def _settings(
    args: argparse.Namespace,
    algorithm: Algorithm | str,
    distribution: Distribution | str | None = None,
    env_settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What `--distribution` and `--set` ask for, as `train` and `build` take it, over what a file asks for."""

    _point_out_own(args)
    own: list[str] = []
    others: dict[str, list[str]] = {"env": [], "distribution": [], "opponents": []}
    for pair in args.set:
        prefix, dot, rest = pair.partition(".")
        if prefix == "eval" and dot:
            continue  # `_eval_settings` reads it
        others[prefix].append(rest) if dot and prefix in others else own.append(pair)
    before = None if distribution is None or isinstance(distribution, str) else lambda: distribution
    changed = _distribution(args, others["distribution"], before)
    return {
        "distribution": changed if changed is not None else distribution,
        "settings": _own_settings(algorithm, own),
        **_opponents(args, others["opponents"]),
        "env_settings": {
            **(env_settings or {}),
            **{key: settings.literal(text) for key, text in map(settings.split, others["env"])},
        },
    }


def _own_settings(algorithm: Algorithm | str, pairs: list[str]) -> dict[str, Any]:
    """Settings of the algorithm, or of those of each group."""
    from runnel import algorithms

    if not isinstance(algorithm, str):
        return settings.parse(type(algorithm), pairs, "")
    if "=" not in algorithm:
        return settings.parse(algorithms.load(algorithm), pairs, algorithm)
    from runnel.execution.group_algorithms import parse_settings

    return parse_settings(algorithm, pairs)


def _opponents(args: argparse.Namespace, pairs: list[str]) -> dict[str, Any]:
    """The matchmaker that `--opponents` and `--set opponents.key=value` ask for."""
    name = getattr(args, "opponents", None)
    if name is None:
        if pairs:
            raise UserError(f"--set opponents.{pairs[0]}: found no --opponents, expected the matchmaker that it is for")
        return {}
    from runnel.execution.building import MATCHMAKERS, matchmaker
    from runnel.matchmaking import Matchmaker

    cls = serialization.load_class(name, MATCHMAKERS, Matchmaker, "matchmaker")
    return {"opponents": matchmaker(name, settings.parse(cls, pairs, name))}


def _stored(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """The policies that a run begins with, and the settings of its evaluation, beside those of `--config`."""
    asked = {
        "init_from": _init_from(args),
        "frozen": _by_group("--frozen", args.frozen or []) or None,
        "eval_env_settings": {**(found.get("eval_env_settings") or {}), **_eval_settings(args)} or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _init_from(args: argparse.Namespace) -> Any:
    """`--init-from RUN` for all groups, or `--init-from GROUP=RUN` for each of some."""
    given = args.init_from or []
    if len(given) == 1 and ("=" not in given[0] or Path(given[0].rpartition("@")[0] or given[0]).exists()):
        return given[0]
    return _by_group("--init-from", given) or None


def _by_group(flag: str, given: Sequence[str]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise UserError(f"{flag} {text}: expected GROUP=RUN_DIR[@TAG]")
    return dict(text.split("=", 1) for text in given)


def _eval_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What `--set eval.env.key=value` asks for."""
    found = {}
    for pair in args.set:
        if pair.startswith("eval."):
            if not pair.startswith("eval.env."):
                raise UserError(
                    f"--set {pair}: expected eval.env.key=value, a setting of the environment in evaluation"
                )
            key, text = settings.split(pair.removeprefix("eval.env."))
            found[key] = settings.literal(text)
    return found


def _env_settings_alone(args: argparse.Namespace) -> dict[str, Any]:
    """What `runnel eval --set env.key=value` asks for."""
    for pair in args.set:
        if not pair.startswith("env."):
            raise UserError(f"--set {pair}: expected env.key=value, a setting of the environment")
    pairs = [settings.split(pair.removeprefix("env.")) for pair in args.set]
    return {key: settings.literal(text) for key, text in pairs}


def _point_out_own(args: argparse.Namespace) -> None:
    """Who stands beside a `reinforce.py` of their own and says `reinforce` may mean that."""
    from runnel import algorithms
    from runnel.user_code import source_scan

    name = algorithms.known_as(args.algorithm or "")
    if name in algorithms.REGISTRY and not getattr(args, "quiet", False):
        own = source_scan.subclasses(f"{name}.py", ["Algorithm", algorithms.REGISTRY[name].rpartition(":")[2]])
        if own:
            meant = " or ".join(own).replace(".py:", ":")
            print(f"{name} is Runnel's own; for that of {name}.py here, write {meant}", file=sys.stderr)


def _distribution(
    args: argparse.Namespace, pairs: Sequence[str], recorded: Callable[[], Distribution] | None = None
) -> Distribution | None:
    """The distribution that the flags ask for; None where they ask for nothing.

    `recorded` gives that of a run or a file: flags change it, unless they name another one.
    """
    numbers = _given(args, *FLAGS)
    before: Any = None
    if args.distribution is not None:
        from runnel import distributions

        cls: Any = distributions.load(args.distribution)
        name = args.distribution
        before = _if_of(cls, args, recorded)
    elif not numbers and not pairs:
        return None
    elif recorded is None:
        from runnel.distributions import those_with

        flag = f"--{next(iter(numbers))}" if numbers else f"--set distribution.{pairs[0]}"
        raise UserError(f"{flag} needs a --distribution that has it{those_with(next(iter(numbers), None))}")
    else:
        before = recorded()
        cls, name = type(before), type(before).__name__.lower()
    _check_flags(name, cls, numbers)
    parsed = settings.parse(cls, pairs, name)
    for flag in numbers.keys() & parsed.keys():
        if numbers[flag] != parsed[flag]:
            raise UserError(
                f"--{flag} {numbers[flag]} and --set distribution.{flag}={parsed[flag]} say different things of "
                "one setting; give one of them"
            )
    changed = {**numbers, **parsed}
    return cls(**changed) if before is None else dataclasses.replace(before, **changed)


def _if_of(cls: type, args: argparse.Namespace, recorded: Callable[[], Distribution] | None) -> Distribution | None:
    """The distribution of a `--config` file, if it is of the class that is named beside it."""
    if recorded is None or args.command not in arguments.CONFIGURED:
        return None
    before = recorded()
    return before if type(before) is cls else None


def _recorded_distribution(args: argparse.Namespace, config: dict[str, Any]) -> Distribution:
    """That of a run which is resumed."""
    from runnel.config import serialization
    from runnel.execution import trust
    from runnel.planning.plan import Distribution

    trust.admit(args.run_dir, config, args.trust, ("distribution",))
    return serialization.from_json(config.get("distribution") or {}, Distribution)


def _check_flags(name: str, cls: type, numbers: dict[str, Any]) -> None:
    from runnel.distributions import those_with

    fields = [field.name for field in dataclasses.fields(cls)]
    for flag in numbers:
        if flag not in fields:
            raise UserError(f"distribution {name} has no --{flag}{those_with(flag)}")


def _status(result: dict[str, Any]) -> int:
    """0 only for a run that has ended as it should, or was stopped and has left a checkpoint to go on from."""
    return 0 if result["status"] in ("finished", "interrupted") and not result.get("reason") else 1


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags that were given: what was not has its default where it is used."""
    given = {name: getattr(args, name) for name in names}
    return {name: None if value is arguments.NOTHING else value for name, value in given.items() if value is not None}


def _ask_for_determinism() -> None:
    """On a GPU some of XLA's fast operations add in any order. Read when JAX starts its first device."""
    flag = "--xla_gpu_deterministic_ops=true"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
