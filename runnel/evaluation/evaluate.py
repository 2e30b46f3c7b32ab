"""Plays episodes with a stored policy, without exploration by default, and films them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel import distributions
from runnel.algorithm import Algorithm
from runnel.environment import Environment, HostEnvironment, JaxEnvironment
from runnel.errors import RunFailed, UserError
from runnel.evaluation.video import Video, recording_video
from runnel.execution.building import BuiltRun, fixed_envs, rebuild
from runnel.execution.policies import stored_policies
from runnel.execution.run import Run, of_run
from runnel.policy.policy import params_of
from runnel.reporting.statistics import evaluation_statistics
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.evaluation import HostEvaluator, PlayedEpisodes, make_evaluator, quotas
from runnel.system import startup
from runnel.system.exits import contained
from runnel.types import PyTree

SEED_OFFSET: Final = 10_000
"""Added to a run's seed if no seed is given, because the run was trained on its own episodes."""


def evaluate(
    run: Path | str | Run,
    episodes: int = 10,
    seed: int | None = None,
    video: Path | str | None = None,
    note: Callable[[str], None] = lambda text: None,
    *,
    tag: str = stored_policies.LATEST,
    member: int | None = None,
    env_settings: Mapping[str, Any] | None = None,
    explore: bool = False,
    algorithm: Algorithm | None = None,
    environment: Any = None,
    trust: Collection[str] = (),
) -> dict[str, Any]:
    """Plays `episodes` episodes with a policy of a run; `video` films the first of them.

    A run is named by its directory, by `RUN_DIR@TAG`, or is what `train` returned; `algorithm` and `environment` are as
    for `resume`. `member`: the number of a run in a directory of several. `env_settings` change settings of the
    environment that the run was trained on.

    `note` is called with warnings for the user, such as that a damaged checkpoint was skipped. `trust`: names of code
    in the run's configuration that may be imported although no run of this user's has signed them.

    Its parameters are one list because each is a choice of its own, which `runnel eval` has as a flag.
    """
    if episodes < 1:
        raise UserError(f"episodes={episodes}: found {episodes}, expected 1 or more", keywords=("episodes",))
    run, tag = _named(run, tag, member)
    run_dir, config, given = of_run(run, algorithm, environment)
    if env_settings:
        kept = config["environment"]
        config = {**config, "environment": {**kept, "settings": {**kept["settings"], **env_settings}}}
        trust = [*trust, *(f"env.{key}={value}" for key, value in env_settings.items() if isinstance(value, str))]
    with contained():
        built = rebuild(run_dir, config, distributions.default_for("host"), trusted=trust, **given)
    seed = int(config["seed"]) + SEED_OFFSET if seed is None else seed
    with contained(), recording_video(video) as film:
        found = _policies(run, tag, built, note)
        params = {group: params_of(built.graph.states[group], s.arrays(), s.where) for group, s in found.items()}
        startup.phase(f"playing {episodes} episodes")
        if film is not None:
            _film(built, params, seed, film, explore)
        played = _play(built, params, seed, episodes, explore)
    if problem := played.problem():
        raise RunFailed(f"{run_dir} could not be evaluated: {problem}")
    for text in played.notes:
        note(text)
    return {
        "run_dir": str(run_dir),
        "tag": tag,
        **stored_policies.describe(found),
        "algorithm": built.plan.algorithm.lower(),
        "environment": config["environment"]["name"],
        "seed": seed,
        **evaluation_statistics(
            played.returns, played.lengths, played.metrics, played.learner_returns, built.graph.learning_groups
        ),
        "video": None if video is None else str(video),
    }


def _named(run: Path | str | Run, tag: str, member: int | None) -> tuple[Path | Run, str]:
    """The run, or one of several, and the tag at the end of its name."""
    found: Any = stored_policies.of_member(run, member)
    return (found, tag) if isinstance(found, Run) else stored_policies.split_name(found, tag)


def _policies(
    run: Path | Run, tag: str, built: BuiltRun, note: Callable[[str], None]
) -> dict[str, stored_policies.StoredPolicy]:
    """The policies of a tag, by group."""
    found = stored_policies.find(run, tag, None, built.algorithm, note, built)
    for group in built.graph.states:
        if group not in found and not built.algorithm.for_group(group).learns:
            # Past opponents of a past policy are not kept: it meets those of now.
            found |= stored_policies.find(run, stored_policies.LATEST, group, built.algorithm, note, built)
        if group not in found:
            run_dir = run.run_dir if isinstance(run, Run) else run
            raise UserError(
                f"{run_dir} has no policy '{tag}' of group '{group}', expected one of each group; use another tag"
            )
    return {group: found[group] for group in built.graph.states}


def _play(built: BuiltRun, params: dict[str, PyTree], seed: int, episodes: int, explore: bool) -> PlayedEpisodes:
    quota = dict(enumerate(quotas(episodes, fixed_envs(built.environment))))
    evaluator = make_evaluator(built.graph, built.environment, seed, quota, explore)
    try:
        return evaluator.play(params)
    finally:
        evaluator.close()


def _film(built: BuiltRun, params: dict[str, PyTree], seed: int, film: Video, explore: bool) -> None:
    """The first episode of environment 0."""
    vector = _as_host(built.environment).open([0], seed, render=True)
    evaluator = HostEvaluator(Loop(built.graph, None, [0]), vector, seed, {0: 1}, explore)
    try:
        evaluator.play_watched(params, watch=lambda vector: film.add(np.asarray(vector.render(0))))
    finally:
        evaluator.close()


def _as_host(environment: Environment) -> HostEnvironment:
    if isinstance(environment, JaxEnvironment):
        from runnel.envs.stepped import Stepped

        return Stepped(environment)
    return environment
