"""Trains members that are compared and copied in rounds.

    population = runnel.train_population("ppo", "gymnax:CartPole-v1", members=16, rule=PBT(every=50_000, ...))
    population.result["best"]

Every member trains up to the same number of steps, a round. Then the rule decides, the decision is recorded, and
members apply it; only then the next round begins. Within a round members are independent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel.algorithm import Algorithm
from runnel.config import run_config, serialization
from runnel.config import settings as fields
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError, nearest
from runnel.execution import trust as trusting
from runnel.execution.members.member_group import Members
from runnel.execution.members.training import MemberMaker, add_members, chosen_seeds
from runnel.execution.populations.rounds import PopulationRounds
from runnel.execution.run_directories import alone, cleared, fresh_directory, refuse_held
from runnel.planning.plan import Distribution
from runnel.population import PopulationRule, random_numbers
from runnel.recording import members_file, population_file
from runnel.recording.population_file import PopulationConfig
from runnel.reporting import metrics_server
from runnel.system import startup
from runnel.system.exits import contained
from runnel.user_code.loading import defined_enough

ENDS_ALONE = ("stop_at_return", "stop_at_eval_return")
"""Keywords of `train` that would end one member before the others."""


def train_population(
    algorithm: Algorithm | type[Algorithm] | str,
    environment: str | Any,
    distribution: Distribution | type[Distribution] | str | None = None,
    *,
    rule: PopulationRule | str,
    members: int,
    variants: Sequence[Mapping[str, Any]] | None = None,
    run_dir: str | Path | None = None,
    quiet: bool = False,
    launcher: str = "local",
    address: str | None = None,
    **asked: Any,
) -> Members:
    """Trains several members, of which some become copies of others by a rule, such as `runnel.PBT`.

    Members differ in their seeds, from `seed` on, and in the settings that the rule draws. `variants`: settings that
    each member begins with instead. `steps` are those of each member. The other keywords are those of `train_members`.

    The directory is that of several runs, with lineage.jsonl: every decision, with parents and settings.

    It is one function because it is a list of steps, half of them refusals, before the first round. Its parameters are
    one list because each is a choice of the user's, as for `train_members`.
    """
    defined_enough()
    began = time.monotonic()
    rule = checked_rule(rule)
    for name in ENDS_ALONE:
        if asked.get(name) is not None:
            raise UserError(
                f"{name}=: found it for a population, whose members end together; leave it out", keywords=(name,)
            )
    if asked.get("opponents") is not None:
        raise UserError(
            "opponents=: found it for a population, whose members would copy each other's opponents; leave it out",
            keywords=("opponents",),
        )
    maker = MemberMaker.of(algorithm, environment, distribution, {**asked, "run_dir": run_dir})
    if not 2 <= members <= run_config.MOST_MEMBERS:
        raise UserError(
            f"members={members}: found {members}, expected 2 to {run_config.MOST_MEMBERS}", keywords=("members",)
        )
    seeds = chosen_seeds(members, maker.run.seed)
    given = _given(rule, maker.run.seed, members, variants)
    configure_jax()
    with contained(), startup.starting(quiet), contextlib.ExitStack() as stack:
        stack.enter_context(metrics_server.serving(maker.run.metrics_port, maker.run.metrics_address, quiet))
        built = maker.built(given[0])
        _check_rule(rule, built)
        rule = _in_iterations(rule, built.graph.steps_per_iteration)
        # Up to the first decision: `steps` in a member's configuration, which continues as long as all do.
        first = replace(maker, run=replace(maker.run, steps=min(rule.every, maker.run.steps)))
        made = [one for variant, seed in zip(given, seeds, strict=True) for one in first.make(variant, [seed])]
        now = [{name: float(one.config["algorithm"]["settings"][name]) for name in rule.varying} for one in made]
        objects = maker.objects(made[0])
        _check_algorithm(objects)
        directory, created = fresh_directory(run_dir, built, seeds[0])
        stack.enter_context(alone(directory))
        stack.enter_context(cleared(created))
        refuse_held(directory)
        config = _signed(PopulationConfig(maker.run.steps, maker.run.seed, serialization.to_json(rule), now), directory)
        population_file.write(directory, config)
        add_members(directory, [one._replace(variant={}) for one in made], members)
        return PopulationRounds(directory, rule, quiet, began, launcher, address, objects=objects).run()


def resume_population(
    run_dir: str | Path, *, steps: int | None = None, quiet: bool = False, trust: Collection[str] = (),
    launcher: str = "local", address: str | None = None, rule: PopulationRule | None = None, environment: Any = None,
    metrics_port: int | None = None, metrics_address: str = metrics_server.LOOPBACK,
) -> Members:  # fmt: skip
    """Continues a population. A decision that was not applied to all members is applied first.

    `steps`: the new total of each member. `rule` and `environment` replace objects that this process cannot import.
    """
    began, directory = time.monotonic(), Path(run_dir)
    configure_jax()
    serving = metrics_server.serving(metrics_port, metrics_address, quiet)
    with contained(), startup.starting(quiet), serving, alone(directory):
        config = population_file.read(directory, len(members_file.read(directory)))
        described = {trusting.RULE: config.rule, **({} if config.code is None else {"code": config.code})}
        of_rule = [name.path for name in trusting.names_in(described)]
        if rule is None:
            named = [name for name in trust if name in of_rule]
            trusting.admit(directory, described, named, (trusting.RULE,), directory / population_file.FILE)
            rule = serialization.from_json(config.rule, PopulationRule)
        rule = checked_rule(rule)
        if steps is not None and steps != config.steps:
            expected = run_config.out_of_range("steps", steps)
            if expected:
                raise UserError(f"steps={steps}: found {steps}, expected {expected}", keywords=("steps",))
            config = replace(config, steps=steps)
        config = _signed(replace(config, rule=serialization.to_json(rule)), directory)
        objects = {} if environment is None else {"environment": environment}
        others = [name for name in trust if name not in of_rule]
        return PopulationRounds(directory, rule, quiet, began, launcher, address, config, others, objects).run()


def checked_rule(rule: Any) -> PopulationRule:
    """The rule itself, or that of an import path, such as `package.module:MyRule`; refused where it is none."""
    if isinstance(rule, str):
        rule = serialization.import_object(rule)
    rule = rule() if isinstance(rule, type) and issubclass(rule, PopulationRule) else rule
    if not isinstance(rule, PopulationRule):
        raise UserError(
            f"rule: found {rule!r}, expected a runnel.PopulationRule such as runnel.PBT", keywords=("rule",)
        )
    every = getattr(rule, "every", None)
    if type(every) is not int or every < 1:
        raise UserError(f"rule: found every={every!r}, expected a whole number of environment steps")
    return rule


def _given(
    rule: PopulationRule, seed: int, members: int, variants: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """The settings that each member begins with."""
    drawn = _drawn(rule, seed, members)
    if variants is not None and len(variants) != members:
        raise UserError(
            f"variants=: found {len(variants)} for {members} members, expected one for each", keywords=("variants",)
        )
    for name in {name for variant in variants or () for name in variant}:
        if name not in rule.varying:
            raise UserError(
                f"variants=: found '{name}', which the rule does not change; give it for all members, as settings=",
                keywords=("variants",),
            )
    return [{**own, **more} for own, more in zip(drawn, variants or [{}] * members, strict=True)]


def _drawn(rule: PopulationRule, seed: int, members: int) -> list[dict[str, float]]:
    """The settings that the rule draws, checked: it may be a user's own."""
    drawn, what = rule.initial(random_numbers(seed, 0), members), f"{type(rule).__name__}.initial"
    if not isinstance(drawn, list | tuple) or len(drawn) != members:
        found = f"{len(drawn)}" if isinstance(drawn, list | tuple) else repr(drawn)
        raise UserError(f"{what}: found {found}, expected a list of {members} settings, one for each member")
    for own in drawn:
        if not isinstance(own, Mapping) or not all(_is_finite(value) for value in own.values()):
            raise UserError(f"{what}: found {own!r}, expected settings by name, as finite numbers")
        for name in own:
            if name not in rule.varying:
                raise UserError(f"{what}: found '{name}', which is not in varying; add it there, or leave it out")
    return [{str(name): float(value) for name, value in own.items()} for own in drawn]


def _is_finite(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    return number and math.isfinite(value)


def _check_rule(rule: PopulationRule, built: Any) -> None:
    per_iteration = built.graph.steps_per_iteration
    if rule.every < per_iteration:
        raise UserError(f"every={rule.every}: found {rule.every} steps, expected an iteration or more: {per_iteration}")
    known = fields.hints_of(type(built.algorithm))
    for name in rule.varying:
        if name not in known:
            raise UserError(f"rule: {type(built.algorithm).__name__} has no setting '{name}'{nearest(name, known)}")
        value = getattr(built.algorithm, name)
        if type(value) not in (int, float) or "float" not in str(known[name]):
            raise UserError(f"rule: it changes '{name}', found {value!r}, expected a setting that is a float")


def _in_iterations(rule: PopulationRule, per_iteration: int) -> PopulationRule:
    """Rounds the rule's interval up to whole iterations, so that all rounds have the same length."""
    every = -(-rule.every // per_iteration) * per_iteration
    stored = dataclasses.is_dataclass(rule) and any(each.name == "every" for each in dataclasses.fields(rule))
    return dataclasses.replace(rule, every=every) if stored and every != rule.every else rule  # type: ignore[type-var]


def _check_algorithm(objects: dict[str, Any]) -> None:
    """Refuses an algorithm without an import path: each member creates an instance of its class."""
    if objects.pop("algorithm", None) is not None:
        raise UserError("a population needs an algorithm that is defined in a module; put its class into one")


def _signed(config: PopulationConfig, directory: Path) -> PopulationConfig:
    signed = trusting.sign({trusting.RULE: config.rule}, directory)
    return replace(config, code=signed.code)
