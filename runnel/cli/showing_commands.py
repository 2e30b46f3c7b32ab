"""The commands that show something: `plan`, `plot`, `dash`, `bench` and `list`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from runnel.cli.asked import check_address, flags_given, for_each_group, settings_asked
from runnel.cli.console import complain
from runnel.errors import UserError, nearest, printable

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def plan_command(args: argparse.Namespace) -> int:
    from runnel.execution.building import build
    from runnel.planning.plan import with_evaluation

    check_address(args)
    machines = args.machines
    if machines is not None and args.launcher == "ray":
        raise UserError(
            "found --machines and --launcher ray, expected one: machines that you name, or those of a cluster"
        )
    if args.launcher not in ("local", "ray"):
        raise UserError(f"found --launcher {args.launcher}, whose machines are known once it starts; use --machines")
    if args.launcher == "ray":
        from runnel.launch.ray_launcher import machines as found

        machines = found(args.address)
    asked = settings_asked(args, args.algorithm)
    algorithm, asked["settings"] = for_each_group(args.algorithm, args.environment, asked["settings"])
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


def plot_command(args: argparse.Namespace) -> int:
    from runnel.reporting.comparison import comparisons
    from runnel.reporting.payoff_plot import plot_payoffs
    from runnel.reporting.plot import plot

    def note(text: str) -> None:
        complain(f"runnel plot: {text}")

    if args.payoffs:
        if len(args.run_dirs) > 1 or args.metric is not None:
            what = "--metric" if args.metric is not None else f"{len(args.run_dirs)} runs"
            raise UserError(f"found {what} beside --payoffs, expected one run alone")
        print(plot_payoffs(args.run_dirs[0], args.out))
        return 0
    print(plot(args.run_dirs, args.out, **flags_given(args, "metric"), note=note))
    for line in comparisons(args.run_dirs):
        print(printable(line))
    return 0


def dash_command(args: argparse.Namespace) -> int:
    from runnel.dash.server import serve

    roots = args.run_dirs or [Path("runs")]

    def say(address: str) -> None:
        shown = ", ".join(map(str, roots))
        print(printable(f"{shown} at {address}"), flush=True)
        print("the token in it allows checkpoints and stops; end with Ctrl-C", flush=True)

    serve(roots, args.host, args.port, say, may_come=not args.run_dirs)
    return 0


def bench_command(args: argparse.Namespace) -> int:
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


def list_command(args: argparse.Namespace) -> int:
    from runnel.cli import catalog

    if args.name is not None:
        from runnel.cli import environment_lists

        known = [entry.name for entry in (*catalog.algorithms(), *catalog.distributions())]
        shown = None if args.name.lower() in known else environment_lists.printed(args.name, args.json)
        if shown is not None:
            print(printable(shown))
            return 0
        entry = catalog.find(args.name, environment_lists.candidates)
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
    lines += ["", "`runnel list NAME` shows the settings of an algorithm, a distribution or an environment;"]
    lines += ["`runnel list gymnax:` and `runnel list gymnasium` name the environments of a family"]
    print("\n".join(lines))
    return 0


def _noted(text: str, note: str) -> str:
    return f"{text} [{note}]" if note else text
