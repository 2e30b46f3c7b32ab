"""Trains several runs with one command: seeds, and settings that differ.

    runs = runnel.train_members("ppo", "gymnax:CartPole-v1", seeds=16)
    runs.result["iqm_return"], runs.result["iqm_interval"]

Each member is a run with its own directory, which every command takes. Under `fused` all members are one program; under
other distributions each has separate processes, and as many run at a time as this machine has cores for.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from runnel.algorithm import Algorithm
from runnel.config import run_config, serialization
from runnel.config import settings as fields
from runnel.config.jax_config import configure_jax
from runnel.config.run_config import RunConfig
from runnel.errors import UserError
from runnel.execution.building import BuiltRun, build, matchmaker
from runnel.execution.members.fused_members import is_fused
from runnel.execution.members.member_group import MemberGroup, Members
from runnel.execution.members.stacked_members import STACKED_ABOVE, check_stackable
from runnel.execution.policies.group_algorithms import resolved
from runnel.execution.run_directories import alone, cleared, fresh_directory, refuse_held
from runnel.execution.supervision.machine_pool import check_workers
from runnel.execution.training import asked_of_train, check_portable, described, train, with_signature
from runnel.planning.plan import Distribution
from runnel.recording import members_file, population_file, run_directory, sweep_file
from runnel.recording.files import as_user_error, write_json_atomically
from runnel.recording.members_file import Member
from runnel.reporting import metrics_server
from runnel.system import startup
from runnel.system.exits import contained
from runnel.user_code.loading import defined_enough

OF_ONE_RUN: Final = ("sinks", "on_update", "on_evaluation", "on_checkpoint", "wandb", "transport")
"""Keywords of `train` that belong to one run."""


def train_members(
    algorithm: Algorithm | type[Algorithm] | str,
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    *,
    seeds: int | Sequence[int],
    variants: Sequence[Mapping[str, Any]] = ({},),
    run_dir: str | Path | None = None,
    quiet: bool = False,
    launcher: str = "local",
    address: str | None = None,
    **asked: Any,
) -> Members:
    """Trains several runs that differ in their seeds, and in settings of their algorithm.

    `seeds`: a number of seeds from `seed` on, or a list of them. `variants`: settings, each of which is trained with
    all seeds. The other keywords are those of `train`, except for callbacks, sinks and Weights & Biases, which apply
    to a single run.
    A setting that is a float is an argument of the compiled program under `fused`, unless Python code needs its value.

    The directory has a run directory for each member, `member-0` and so on, and a result.json with the interquartile
    mean of the members' returns and its 95% confidence interval.
    """
    defined_enough()
    began = time.monotonic()
    maker = MemberMaker.of(algorithm, environment, distribution, {**asked, "run_dir": run_dir})
    chosen = chosen_seeds(seeds, maker.run.seed)
    if isinstance(variants, Mapping | str) or not all(isinstance(variant, Mapping) for variant in variants or [None]):
        raise UserError(
            f"variants={str(variants)[:60]}: expected a list of settings, such as [{{'learning_rate': 1e-3}}]",
            keywords=("variants",),
        )
    configure_jax()
    with contained(), startup.starting(quiet), contextlib.ExitStack() as stack:
        count = len(variants) * len(chosen)
        if not 1 <= count <= run_config.MOST_MEMBERS:
            raise UserError(f"found {count} members, expected 1 to {run_config.MOST_MEMBERS}", keywords=("seeds",))
        stack.enter_context(metrics_server.serving(maker.run.metrics_port, maker.run.metrics_address, quiet))
        stacked = count > STACKED_ABOVE and is_fused(maker.built(variants[0]))
        if stacked:
            check_stackable(maker.run)
        made = [one for variant in variants for one in maker.make(variant, chosen)]
        directory, created = fresh_directory(run_dir, maker.built(variants[0]), chosen[0])
        stack.enter_context(alone(directory))
        stack.enter_context(cleared(created))
        refuse_held(directory)
        add_members(directory, made, count)
        objects = maker.objects(made[0]) if len(variants) == 1 else {}
        return MemberGroup(directory, quiet, began, launcher, address, objects=objects, stacked=stacked).run()


class MadeMember(NamedTuple):
    """A member that has no directory yet."""

    seed: int
    variant: Mapping[str, Any]
    config: dict[str, Any]


@dataclass
class MemberMaker:
    """Makes the configurations of members: what `train` was asked for, with other seeds and settings."""

    algorithm: Any
    environment: Any
    distribution: Any
    run: RunConfig
    _made: dict[str, BuiltRun] = field(default_factory=dict)

    @classmethod
    def of(cls, algorithm: Any, environment: Any, distribution: Any, asked: Mapping[str, Any]) -> Self:
        """`asked`: keywords of `train`."""
        for name in OF_ONE_RUN:
            if asked.get(name):
                raise UserError(
                    f"{name}=: found it for several members, expected it for one run alone", keywords=(name,)
                )
        call = inspect.signature(train).bind(algorithm, environment, distribution, **asked)
        call.apply_defaults()
        run, distribution = asked_of_train(fields.check_arguments(train, call.arguments))
        return cls(algorithm, environment, distribution, run)

    def built(self, variant: Mapping[str, Any]) -> BuiltRun:
        """The configuration of a run with these settings; raises UserError if they are invalid."""
        key = repr(sorted(variant.items()))
        if key not in self._made:
            given = {**(self.run.settings or {}), **variant}
            algorithm, settings = resolved(self.algorithm, self.environment, given)
            self._made[key] = build(
                algorithm, self.environment, self.distribution, self.run.envs, settings, self.run.env_settings,
                frozen=tuple(self.run.frozen or ()), opponents=matchmaker(self.run.opponents),
                precision=self.run.precision,
            )  # fmt: skip
        return self._made[key]

    def make(self, variant: Mapping[str, Any], seeds: Sequence[int]) -> list[MadeMember]:
        """A member for each seed."""
        built, made = self.built(variant), []
        check_workers(built.plan)
        for seed in seeds:
            config = run_config.to_json(replace(self.run, envs=built.graph.envs, seed=seed), described(built))
            with_signature(config, built, None)
            if not is_fused(built):
                check_portable(config, built)
            made.append(MadeMember(seed, variant, config))
        return made

    def objects(self, member: MadeMember) -> dict[str, Any]:
        """A member's algorithm and environment, where no other process can import them."""
        built, config = self.built(member.variant), member.config
        given = (("algorithm", built.algorithm), ("environment", built.made_from))
        return {part: value for part, value in given if serialization.reason(config[part]) is not None}


def add_members(directory: Path, made: Sequence[MadeMember], count: int) -> list[int]:
    """Adds members to a directory and returns their numbers. `count`: the total in the end."""
    listed = members_file.read(directory) if members_file.holds_members(directory) else []
    numbers = []
    for seed, variant, config in made:
        member = Member(members_file.name_of(len(listed), count), seed, _shown(variant))
        with as_user_error(
            directory / member.directory
        ):  # there is one of a command that was killed before it listed it
            run_directory.make_directory(directory, member.directory)
        write_json_atomically(directory / member.directory / "config.json", config)
        numbers.append(len(listed))
        listed.append(member)
    members_file.write(directory, listed)
    return numbers


def resume_members(
    run_dir: str | Path, *, steps: int | None = None, quiet: bool = False, trust: Collection[str] = (),
    launcher: str = "local", address: str | None = None, algorithm: Algorithm | None = None, environment: Any = None,
    metrics_port: int | None = None, metrics_address: str = metrics_server.LOOPBACK,
) -> Members:  # fmt: skip
    """Continues all members that have not finished, each from its newest checkpoint."""
    defined_enough()
    began, directory = time.monotonic(), Path(run_dir)
    if sweep_file.holds_sweep(directory):
        raise UserError(f"{directory} holds a sweep; continue it with runnel.resume_sweep, or name one of its members")
    configure_jax()
    if population_file.is_population(directory):
        raise UserError(f"{directory} holds a population; continue it with runnel.resume_population")
    given = {"algorithm": algorithm, "environment": environment}
    serving = metrics_server.serving(metrics_port, metrics_address, quiet)
    with contained(), startup.starting(quiet), serving, alone(directory):
        objects = {name: value for name, value in given.items() if value is not None}
        return MemberGroup(directory, quiet, began, launcher, address, steps, trust, objects).run()


def chosen_seeds(seeds: int | Sequence[int], first: int) -> list[int]:
    """The seeds of the members: the given ones, or `seeds` consecutive ones beginning with `first`."""
    if isinstance(seeds, bool) or not isinstance(seeds, int | Sequence) or isinstance(seeds, str):
        raise UserError(f"seeds={seeds!r}: expected a number of seeds, or a list of them", keywords=("seeds",))
    if isinstance(seeds, int) and seeds > run_config.MOST_MEMBERS:
        raise UserError(f"seeds={seeds}: expected {run_config.MOST_MEMBERS} or fewer", keywords=("seeds",))
    chosen = list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)
    if not chosen or not all(type(seed) is int for seed in chosen):
        raise UserError(f"seeds={seeds!r}: expected one seed or more, whole numbers", keywords=("seeds",))
    for seed in chosen:
        expected = run_config.out_of_range("seed", seed)
        if expected:
            raise UserError(f"seeds={seeds!r}: found {seed}, expected {expected}", keywords=("seeds",))
    if len(set(chosen)) < len(chosen):
        raise UserError(f"seeds={seeds!r}: found a seed twice, expected each once", keywords=("seeds",))
    return chosen


def _shown(variant: Mapping[str, Any]) -> dict[str, Any]:
    """A variant in members.json, which is for readers only: config.json is authoritative."""
    plain = (str, int, float, bool, type(None))
    return {name: value if isinstance(value, plain) else str(value) for name, value in variant.items()}
