"""The page that explains an error which names none itself: by the flag that it is about, or the module that raised it.

An error with a `page` of its own is explained more closely; these are the pages of an area.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final

KEYWORDS: Final[Mapping[str, str]] = {
    "envs": "command-line#train",
    "eval_": "evaluate",
    "frozen": "use-a-policy#start-another-run-from-it",
    "hang_after_s": "faults#how-a-worker-is-replaced",
    "init_from": "use-a-policy#start-another-run-from-it",
    "keep_": "evaluate",
    "metrics_": "prometheus",
    "on_nan": "faults#when-a-number-is-not-finite",
    "opponents": "self-play#past-opponents",
    "restarts": "faults#how-a-worker-is-replaced",
    "run_dir": "run-directory",
    "stop_at_eval_return": "evaluate",
}
"""By a keyword of `train` that an error is about, or how it begins."""

AREAS: Final[Mapping[str, str]] = {
    "runnel.algorithm": "write-an-algorithm#several-policies",
    "runnel.algorithms": "reference-algorithms",
    "runnel.cli": "command-line",
    "runnel.cli.catalog": "command-line#list",
    "runnel.cli.environment_names": "command-line#list",
    "runnel.cli.pages": "command-line#help",
    "runnel.cli.policy_commands": "command-line#policies",
    "runnel.cli.policy_table": "command-line#policies",
    "runnel.cli.population_flags": "populations",
    "runnel.config": "command-line#settings",
    "runnel.config.policy_config": "use-a-policy",
    "runnel.config.run_config": "run-directory#configjson",
    "runnel.config.search_space": "sweeps#the-space",
    "runnel.config.serialization": "command-line#algorithms-and-environments",
    "runnel.config.spec_json": "use-a-policy",
    "runnel.dash": "dash",
    "runnel.envs": "add-an-environment",
    "runnel.envs.ale": "add-an-environment#atari",
    "runnel.envs.brax": "add-an-environment#brax",
    "runnel.envs.envpool": "add-an-environment#envpool",
    "runnel.envs.frame_stack": "add-an-environment#frame-stacking",
    "runnel.envs.gymnasium": "add-an-environment#your-own-from-gymnasium",
    "runnel.envs.gymnax": "add-an-environment#gymnax",
    "runnel.envs.jaxmarl": "add-an-environment#jaxmarl",
    "runnel.envs.jaxmarl_catalog": "add-an-environment#jaxmarl",
    "runnel.envs.lineups": "self-play#games-of-two-roles",
    "runnel.envs.matrix_games": "add-an-environment#matrix-games",
    "runnel.envs.openspiel": "add-an-environment#openspiel",
    "runnel.envs.pettingzoo": "add-an-environment#pettingzoo",
    "runnel.envs.pgx": "add-an-environment#pgx",
    "runnel.envs.seats": "self-play",
    "runnel.envs.teams": "add-an-environment#several-agents",
    "runnel.envs.user_vector": "add-an-environment#a-gymnasium-vectorenv",
    "runnel.envs.user_vector_modes": "add-an-environment#a-gymnasium-vectorenv",
    "runnel.envs.user_vector_rows": "add-an-environment#a-gymnasium-vectorenv",
    "runnel.evaluation": "use-a-policy",
    "runnel.evaluation.evaluate": "evaluate#after-the-run",
    "runnel.evaluation.export": "export",
    "runnel.evaluation.match": "command-line#versus",
    "runnel.evaluation.onnx_file": "export",
    "runnel.evaluation.openings": "command-line#versus",
    "runnel.evaluation.stablehlo_file": "export",
    "runnel.evaluation.versus": "command-line#versus",
    "runnel.evaluation.video": "command-line#eval",
    "runnel.execution": "command-line#train",
    "runnel.execution.arranged_game": "self-play#past-opponents",
    "runnel.execution.callbacks": "use-a-policy#callbacks",
    "runnel.execution.config_file": "command-line#a-configuration-from-a-file",
    "runnel.execution.members": "many-runs",
    "runnel.execution.plan_settings": "run-directory#configjson",
    "runnel.execution.policies": "use-a-policy#start-another-run-from-it",
    "runnel.execution.policies.group_algorithms": "self-play#several-algorithms",
    "runnel.execution.policies.opponents": "self-play#past-opponents",
    "runnel.execution.populations": "populations",
    "runnel.execution.run": "run-directory",
    "runnel.execution.run_directories": "run-directory",
    "runnel.execution.session": "faults",
    "runnel.execution.snapshots": "evaluate",
    "runnel.execution.supervision": "faults",
    "runnel.execution.sweeps": "sweeps",
    "runnel.execution.training": "command-line#train",
    "runnel.execution.trust": "run-directory#whose-code-is-executed",
    "runnel.graph": "write-an-algorithm#errors",
    "runnel.launch": "cluster#when-it-does-not-start",
    "runnel.launch.fork_server_client": "command-line#doctor",
    "runnel.launch.local_launcher": "command-line#doctor",
    "runnel.league": "league",
    "runnel.matchmaking": "self-play#your-own-matchmaker",
    "runnel.nn": "use-a-network",
    "runnel.ops": "league#results",
    "runnel.ops.column_blocks": "troubleshooting#numbers-that-must-divide",
    "runnel.payoffs": "league#results",
    "runnel.planning": "write-a-distribution",
    "runnel.planning.machine": "command-line#plan",
    "runnel.planning.reuse": "performance-knobs#how-much-at-a-time",
    "runnel.planning.slacks": "write-a-distribution#synchronise-edges-differently",
    "runnel.planning.synchronisation": "write-a-distribution#synchronise-edges-differently",
    "runnel.policy": "use-a-policy#load-it-and-act",
    "runnel.population": "populations",
    "runnel.recording": "run-directory",
    "runnel.recording.named_sinks": "prometheus#trackers",
    "runnel.recording.policy_directory": "use-a-policy#list-filter-and-tag",
    "runnel.recording.policy_store": "use-a-policy#list-filter-and-tag",
    "runnel.recording.sinks": "extend#a-sink",
    "runnel.replay": "write-an-algorithm#replay",
    "runnel.reporting": "many-runs#draw-and-compare",
    "runnel.reporting.metrics_server": "prometheus",
    "runnel.runtime": "faults",
    "runnel.system": "troubleshooting",
    "runnel.transport": "cluster#security",
    "runnel.user_code": "command-line#algorithms-and-environments",
}
"""By module or package: the longest name that fits decides."""


def page_of(error: BaseException) -> str:
    """The page that explains an error, or a section of it; empty where there is none."""
    own = getattr(error, "page", "")
    if own:
        return own
    for keyword in getattr(error, "keywords", ()):
        found = next((page for name, page in KEYWORDS.items() if keyword.startswith(name)), "")
        if found:
            return found
    return area_page(_raised_by(_origin(error)))


def area_page(module: str) -> str:
    """The page of a module, or of the nearest package above it that has one."""
    while module and module not in AREAS:
        module = module.rpartition(".")[0]
    return AREAS.get(module, "")


def _origin(error: BaseException) -> BaseException:
    """The first error of its kind: one that is raised again in other words has the module that found it behind it."""
    while isinstance(error.__context__, type(error)) and _raised_by(error.__context__):
        error = error.__context__
    return error


def _raised_by(error: BaseException) -> str:
    """The innermost module of Runnel's in which an error was raised."""
    found, frame = "", error.__traceback__
    while isinstance(frame, TracebackType):
        module = frame.tb_frame.f_globals.get("__name__", "")
        if isinstance(module, str) and module.startswith("runnel."):
            found = module
        frame = frame.tb_next
    return found
