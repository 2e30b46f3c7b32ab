"""Loading stored policies to act with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError
from runnel.execution import trust as trusting
from runnel.execution.run import Run
from runnel.execution.stored_policies import Source, StoredPolicy, find
from runnel.policy import Policies, Policy
from runnel.recording.files import one_line
from runnel.recording.policy_store import LATEST, PolicyStore


def load(
    source: Source,
    tag: str = LATEST,
    group: str | None = None,
    device: str = "cpu",
    *,
    seed: int = 0,
    algorithm: Algorithm | None = None,
    trust: Collection[str] = (),
) -> Policy | Policies:
    """A trained policy, to act with. The environment's package is not needed.

    `source`: a run directory, `RUN_DIR@TAG`, a `Run`, a snapshot of `runnel.policies`, or a directory that
    `Policy.save` wrote. Of several groups, all policies are loaded as `Policies`, or the one of `group`.

    `seed`: of the random numbers of exploring. `algorithm`: takes the place of the stored one, for a class that no
    other process can import. `trust`: names of code that may be imported although no run of this user's has signed
    them.
    """
    configure_jax()
    found = find(source, tag, group, algorithm)
    policies = {each: make(stored, device, seed, trust) for each, stored in found.items()}
    return next(iter(policies.values())) if len(policies) == 1 else Policies(policies)


def policies(run_dir: str | Path | Run) -> PolicyStore:
    """The policies that a run has stored; see `runnel.recording.policy_store.PolicyStore`."""
    directory = run_dir.run_dir if isinstance(run_dir, Run) else Path(run_dir)
    if not directory.is_dir():
        raise UserError(f"there is no directory {directory}")
    return PolicyStore(directory)


def make(stored: StoredPolicy, device: str | None = "cpu", seed: int = 0, trust: Collection[str] = ()) -> Policy:
    """The policy itself. Its algorithm is imported only if it is Runnel's own, signed, or trusted by name."""
    algorithm = stored.algorithm
    if algorithm is None:
        trusting.admit(stored.directory, stored.config.to_json(), trust, ("algorithm",))
        algorithm = serialization.from_json(stored.config.algorithm, Algorithm)
    try:
        return Policy(algorithm, stored.config, stored.arrays(), device=device, seed=seed, where=stored.where)
    except UserError:
        raise
    except Exception as error:  # the settings or the spec in a file that was edited: anything can be in there
        if stored.algorithm is not None:
            raise
        name = type(algorithm).__name__
        raise UserError(f"{stored.where}: {name} cannot be made of its settings and spec: {one_line(error)}") from None
