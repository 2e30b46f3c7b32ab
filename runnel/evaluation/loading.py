"""Loading stored policies to act with."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.config.jax_config import configure_jax
from runnel.errors import UserError
from runnel.execution import trust as trusting
from runnel.execution.policies.stored_policies import Source, StoredPolicy, find, learnt, of_member
from runnel.execution.run import Run
from runnel.policy import Policies, Policy
from runnel.recording import member_checkpoints, members_file, policy_directory, run_directory
from runnel.recording.files import one_line
from runnel.recording.policy_directory import CONFIG
from runnel.recording.policy_store import LATEST, PolicyStore


def load(
    source: Source,
    tag: str | int = LATEST,
    group: str | None = None,
    device: str = "cpu",
    *,
    member: int | None = None,
    seed: int = 0,
    algorithm: Algorithm | None = None,
    trust: Collection[str] = (),
) -> Policy | Policies:
    """Loads a trained policy. The environment's package is not needed.

    `source`: a run directory, `RUN_DIR@TAG`, a `Run`, a snapshot of `runnel.policies`, or a directory that
    `Policy.save` wrote. If several groups have learnt, all their policies are loaded as `Policies`, or only that of
    `group`.

    `member`: the number of a run in a directory of several. `seed`: of the random numbers of exploration.
    `algorithm`: replaces the stored one, for a class that this process cannot import. `trust`: names of
    code that may be imported although no run of this user's has signed them.
    """
    configure_jax()
    found = find(of_member(source, member), str(tag), group, algorithm)
    found = found if group is not None else learnt(found)
    policies = {each: make(stored, device, seed, trust) for each, stored in found.items()}
    return next(iter(policies.values())) if len(policies) == 1 else Policies(policies)


def policies(run_dir: str | Path | Run, member: int | None = None) -> PolicyStore:
    """The policies that a run has stored; see `runnel.recording.policy_store.PolicyStore`.

    `member`: of a directory of several runs, the number of one.
    """
    directory = run_dir.run_dir if isinstance(run_dir, Run) else Path(run_dir)
    if not directory.is_dir():
        raise UserError(run_directory.absent(directory), page="use-a-policy#load-it-and-act")
    if member is not None:
        directory = member_checkpoints.directory_of(directory, member)
    members_file.refuse_several(directory)
    if policy_directory.names_in(directory):
        raise UserError(f"{directory} holds a saved policy, expected a run directory; `runnel.load` loads it")
    if not run_directory.exists(directory, CONFIG):
        raise UserError(f"{directory} holds no run: there is no {CONFIG} in it")
    return PolicyStore(directory)


def make(stored: StoredPolicy, device: str | None = "cpu", seed: int = 0, trust: Collection[str] = ()) -> Policy:
    """The policy itself. Its algorithm is imported only if it is Runnel's own, signed, or trusted by name."""
    algorithm = stored.algorithm
    if algorithm is None:
        file = f"{stored.where}/{CONFIG}"
        trusting.admit(stored.directory, stored.config.to_json(), trust, ("algorithm",), file)
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
