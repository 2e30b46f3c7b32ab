"""The entry of an evaluation process, which plays its share of the episodes with the parameters that it receives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from runnel.execution.snapshots.evaluation_messages import BETWEEN, EpisodesPlayed, StepsPlayed, parse_command

BEAT_S = 0.5
"""The interval in seconds between heartbeats while it plays."""


def main(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Serves its control connection until the other end is gone."""
    import jax

    from runnel.config.jax_config import configure_jax
    from runnel.execution.snapshots.evaluation_task import EvaluationTask
    from runnel.policy.policy import params_of

    del fds
    jax.config.update("jax_enable_x64", job["x64"])
    configure_jax()
    task = EvaluationTask.from_json(job["task"])
    evaluator, graph = task.make({int(index): count for index, count in job["quota"].items()})
    last = 0.0

    def beat(steps: int) -> None:
        nonlocal last
        if time.monotonic() - last > BEAT_S:
            last = time.monotonic()
            control.send(StepsPlayed(steps).to_json())

    try:
        while not control.closed:
            message = control.receive(timeout_s=1.0)
            if message is None:
                continue
            number = parse_command(message.value).number
            params = {
                group: params_of(state, _of_group(message.arrays, group), f"snapshot {number}")
                for group, state in graph.states.items()
            }
            played = evaluator.play(params, beat)
            arrays: dict[str, np.ndarray] = {f"length{BETWEEN}": played.lengths}
            arrays[f"learner{BETWEEN}"] = played.learner_returns
            arrays |= {f"return{BETWEEN}{group}": values for group, values in played.returns.items()}
            arrays |= {f"metric{BETWEEN}{name}": values for name, values in played.metrics.items()}
            control.send_arrays(EpisodesPlayed(number, list(played.notes)).to_json(), arrays)
    except BrokenPipeError:
        pass  # the run has ended
    finally:
        evaluator.close()


def _of_group(arrays: dict[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    prefix = f"{group}{BETWEEN}"
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
