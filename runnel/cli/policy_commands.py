"""The commands that use trained policies: `eval`, `versus`, `policies` and `export`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from runnel.cli.asked import env_settings_alone, flags_given
from runnel.cli.console import complain
from runnel.errors import UserError, printable


def eval_command(args: argparse.Namespace) -> int:
    from runnel.evaluation.evaluate import evaluate
    from runnel.recording.files import write_json_atomically
    from runnel.reporting.number_words import short

    def note(text: str) -> None:
        print(printable(text), file=sys.stderr)

    found = evaluate(
        args.run_dir, args.episodes, args.seed, args.video, note, member=args.member,
        env_settings=env_settings_alone(args), explore=args.explore, trust=args.trust,
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


def versus_command(args: argparse.Namespace) -> int:
    from runnel.cli import match_tables
    from runnel.evaluation.versus import versus

    def note(text: str) -> None:
        complain(f"runnel versus: {text}")

    found = versus(
        args.a, args.b, args.env, episodes=args.episodes, openings=args.openings, opening_moves=args.opening_moves,
        seed=args.seed, explore=args.explore, env_settings=env_settings_alone(args), note=note, trust=args.trust,
    )  # fmt: skip
    print(json.dumps(found, indent=2) if args.json else printable("\n".join(match_tables.versus_lines(found))))
    return 0


def policies_command(args: argparse.Namespace) -> int:
    from runnel.cli import policy_table
    from runnel.evaluation.loading import policies
    from runnel.execution.policies.stored_policies import split_name

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

    given = [*flags_given(args, "group", "with_tag", "version", "tag", "untag"), *(["where"] if args.where else [])]
    if given:
        raise UserError(f"found --{given[0].replace('_', '-')} beside --payoffs, which shows all results; leave it out")
    found = read_payoffs(run_dir)
    if args.json:
        print(json.dumps(match_tables.payoffs_json(found, run_dir), indent=2, allow_nan=False))
    else:
        print(printable("\n".join(line for each in found for line in match_tables.payoff_lines(each))))
    return 0


def export_command(args: argparse.Namespace) -> int:
    from runnel.evaluation.export import export

    made = export(
        args.run_dir, args.out, args.format, group=args.group, member=args.member, opset=args.opset, trust=args.trust
    )
    print(printable(str(made)))
    return 0
