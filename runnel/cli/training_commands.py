"""The commands that train: `train`, `sweep` and `resume`."""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from typing import Any, Final

from runnel.cli import population_flags
from runnel.cli.arguments import flag_of
from runnel.cli.asked import (
    check_address,
    distribution_asked,
    flags_given,
    for_each_group,
    policies_asked,
    recorded_distribution,
    settings_asked,
)  # fmt: skip
from runnel.cli.catalog import FLAGS
from runnel.cli.console import complain
from runnel.cli.shared_flags import NAMES
from runnel.errors import UserError

SERVED: Final = ("metrics_port", "metrics_address")
"""What belongs to this command, and is never taken from a run directory."""


def train_command(args: argparse.Namespace) -> int:
    from runnel.execution.training import resolve, train

    check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    algorithm, environment, asked = _asked(args)
    asked |= flags_given(args, "stop_at_return", "stop_at_eval_return", "wandb", "sinks")
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
    from runnel.execution.members.training import train_members

    members = train_members(
        algorithm, environment, seeds=args.seeds, launcher=args.launcher, address=args.address, quiet=args.quiet,
        **asked,
    )  # fmt: skip
    return _status(members.result)


def _train_population(
    args: argparse.Namespace, rule: Any, algorithm: Any, environment: Any, asked: dict[str, Any]
) -> int:
    from runnel.execution.populations.training import train_population

    members = train_population(
        algorithm, environment, rule=rule, members=args.population, launcher=args.launcher, address=args.address,
        quiet=args.quiet, **asked,
    )  # fmt: skip
    return _status(members.result)


def sweep_command(args: argparse.Namespace) -> int:
    from runnel.execution.sweeps.sweep import sweep

    check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    args.wandb = None
    algorithm, environment, asked = _asked(args)
    found = sweep(
        algorithm, environment, over=args.over, launcher=args.launcher, address=args.address, quiet=args.quiet,
        **flags_given(args, "trials", "sampler", "batch", "seeds", "halving", "rungs", "winner_seeds"), **asked,
    )  # fmt: skip
    return _status(found.result)


def _asked(args: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The algorithm, the environment, and what flags and `--config` ask for besides."""
    found = _from_file(args) if args.config is not None else {}
    algorithm, environment = (found.pop(name, getattr(args, name)) for name in NAMES)
    asked = settings_asked(args, algorithm, found.get("distribution"), found.get("env_settings"))
    algorithm, asked["settings"] = for_each_group(algorithm, environment, asked["settings"])
    return algorithm, environment, {
        **found,
        **asked,
        **flags_given(args, "envs", "steps", "seed", "precision", "run_dir", *SERVED),
        **flags_given(args, "checkpoint_every_s", "restarts", "hang_after_s", "on_nan"),
        **flags_given(args, "eval_every", "eval_episodes", "eval_seed", "eval_workers", "eval_metric"),
        **flags_given(args, "keep_every", "keep_every_s", "keep_best", "eval_wait", "eval_explore"),
        **policies_asked(args, found),
    }  # fmt: skip


def _from_file(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `train` that `--config` asks for."""
    from runnel.execution import config_file

    return config_file.arguments(
        args.config,
        **flags_given(args, *NAMES, "distribution", "wandb"),
        trust=args.trust,
        note=lambda text: None if args.quiet else complain(f"runnel {args.command}: {text}"),
    )


def resume_command(args: argparse.Namespace) -> int:
    from runnel.execution.building import read_config
    from runnel.execution.training import resume
    from runnel.recording.members_file import holds_members
    from runnel.recording.sweep_file import holds_sweep

    check_address(args)
    if args.deterministic:
        _ask_for_determinism()
    if holds_sweep(args.run_dir):
        return _resume_sweep(args)
    if holds_members(args.run_dir):
        return _resume_members(args)
    distribution = distribution_asked(args, (), partial(recorded_distribution, args, read_config(args.run_dir)))
    run = resume(
        args.run_dir, steps=args.steps, distribution=distribution, on_nan=args.on_nan, launcher=args.launcher,
        address=args.address, quiet=args.quiet, trust=args.trust, **flags_given(args, "sinks", *SERVED),
    )  # fmt: skip
    return _status(run.result)


def _resume_members(args: argparse.Namespace) -> int:
    from runnel.execution.members.training import resume_members
    from runnel.execution.populations.training import resume_population
    from runnel.recording.population_file import is_population

    given = [*flags_given(args, "distribution", "on_nan", "sinks", *FLAGS)]
    if given:
        raise UserError(
            f"{args.run_dir} holds several runs; found {flag_of(given[0])}, which can be given for one of "
            "them: name its directory"
        )
    resume = resume_population if is_population(args.run_dir) else resume_members
    members = resume(
        args.run_dir, steps=args.steps, quiet=args.quiet, trust=args.trust, launcher=args.launcher,
        address=args.address, **flags_given(args, *SERVED),
    )  # fmt: skip
    return _status(members.result)


def _resume_sweep(args: argparse.Namespace) -> int:
    from runnel.execution.sweeps.sweep import resume_sweep

    given = [*flags_given(args, "steps", "distribution", "on_nan", "sinks", *FLAGS)]
    if given:
        raise UserError(
            f"{args.run_dir} holds a sweep, which goes on as it was begun; found {flag_of(given[0])}: leave "
            "it out, or name the directory of one member"
        )
    found = resume_sweep(
        args.run_dir, quiet=args.quiet, trust=args.trust, launcher=args.launcher, address=args.address,
        **flags_given(args, *SERVED),
    )  # fmt: skip
    return _status(found.result)


def _status(result: dict[str, Any]) -> int:
    """0 only for a run that has ended as it should, or was stopped and has left a checkpoint to go on from."""
    return 0 if result["status"] in ("finished", "interrupted") and not result.get("reason") else 1


def _ask_for_determinism() -> None:
    """On a GPU some of XLA's fast operations add in any order. Read when JAX starts its first device."""
    flag = "--xla_gpu_deterministic_ops=true"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
