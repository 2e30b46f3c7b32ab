"""Learners that are in step with each other pause at the same iteration, whoever hears of it first."""

import time

from toys import Drift

import runnel
from runnel.execution.distributed_program import DistributedProgram
from runnel.runtime.control_messages import Pause


def test_a_learner_for_each_group_pauses_with_the_others(tmp_path, monkeypatch):
    send = DistributedProgram._send

    def slowly(fleet, name, message):
        if isinstance(message, Pause):
            time.sleep(0.5)  # whoever is asked first has paused, and the others have begun what they cannot finish
        send(fleet, name, message)

    monkeypatch.setattr(DistributedProgram, "_send", slowly)
    run = runnel.train(
        Drift(),
        "toys:Tag",
        "environments",
        actors=1,
        envs=2,
        steps=6000,
        run_dir=tmp_path / "run",
        quiet=True,
        checkpoint_every_s=0.2,
    )
    assert run.result["status"] == "finished"
    assert run.result["restarts"] == 0
    assert run.result["env_steps"] <= 6000
