"""MLflow: `runnel train ppo CartPole-v1 --sink mlflow`.

MLflow's own variables set the server and the experiment: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mlflow
from mlflow.entities import Metric, Param

from runnel.recording.files import clean
from runnel.recording.sinks import Record

TAG: Final = "runnel.directory"
"""The tag of an MLflow run with the hash of its run directory's path. It is stored at MLflow, not in the directory,
which may be untrusted and could name another run of the user's."""

LONGEST: Final = 500
"""The characters of a parameter that every version of MLflow stores."""

PATIENCE: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Time limits for an absent server: training waits while a record is written, and MLflow would retry for minutes."""


class MlflowSink:
    """A run at MLflow, whose steps are environment steps. A resumed run continues the same MLflow run."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]):
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "runnel")
        experiment = self._client.get_experiment_by_name(name)
        place = experiment.experiment_id if experiment else self._client.create_experiment(name)
        directory = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()
        known = self._client.search_runs([place], f"tags.`{TAG}` = '{directory}'", max_results=1)
        if known:
            self._run_id = known[0].info.run_id
            self._client.update_run(self._run_id, "RUNNING")
            return
        run = self._client.create_run(place, run_name=run_dir.resolve().name, tags={TAG: directory})
        self._run_id = run.info.run_id
        params = [Param(key, text[:LONGEST]) for key, text in _flat(clean(config)).items()]
        for first in range(0, len(params), 100):  # as many as one request may have
            self._client.log_batch(self._run_id, params=params[first : first + 100])

    def write(self, record: Record) -> None:
        now, step = int(time.time() * 1000), int(record.get("env_steps") or 0)
        known = {name: float(value) for name, value in record.items() if value is not None}
        metrics = [Metric(name, value, now, step) for name, value in known.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Nested settings as MLflow's parameters: `algorithm.settings.learning_rate`."""
    if not isinstance(value, Mapping):
        return {name: str(value)}
    inner = {f"{name}.{key}" if name else str(key): part for key, part in value.items()}
    return {full: text for key, part in inner.items() for full, text in _flat(part, key).items()}
