"""A run that meets NaN stops, skips the update or goes back, by choice, and says what was not finite."""

import json
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fragile import Fragile
from toys import Reinforce, State

import runnel
from runnel.cli.main import main
from runnel.distributions.coarse import Coarse
from runnel.errors import RunFailed, UserError
from runnel.runtime.recovery.nan_rollback import MAX_ROLLBACKS, NanRollback

STEPS = 8 * 4  # of an iteration


def train(tmp_path, iterations, algorithm=None, **settings):
    return runnel.train(
        algorithm or Fragile(), "toys:Corridor", settings.pop("distribution", "fused"), envs=4,
        steps=iterations * STEPS, run_dir=tmp_path / "run", quiet=True, **settings,
    )  # fmt: skip


def events(run_dir, name):
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def result(run_dir):
    return json.loads((run_dir / "result.json").read_text())


def assert_finite(run):
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(run.states))


@pytest.mark.parametrize("distribution", ["fused", "inline"])
def test_a_run_stops_says_what_and_keeps_its_last_good_state(distribution, tmp_path):
    with pytest.raises(RunFailed, match=r"fragile's learn: loss was not finite at update 4 \(128 steps\)") as failed:
        train(tmp_path, 10, distribution=distribution)
    assert "--on-nan skip" in str(failed.value)
    run_dir = tmp_path / "run"
    assert result(run_dir)["status"] == "failed"
    assert "fragile's learn: loss" in result(run_dir)["reason"]
    assert [event["quantities"] for event in events(run_dir, "nan")] == [{"fragile's learn: loss": 1}]
    # The state is that of the third update, and whoever goes on without the fourth may.
    run = runnel.resume(run_dir, on_nan="skip", quiet=True)
    assert run.result["status"] == "finished"
    assert run.result["updates"] == 10
    assert_finite(run)
    assert json.loads((run_dir / "config.json").read_text())["on_nan"] == "skip"


def test_a_run_that_skips_goes_on_and_counts(tmp_path):
    run = train(tmp_path, 8, on_nan="skip")
    assert run.result["status"] == "finished"
    assert (run.result["updates"], run.result["skipped_updates"]) == (8, 1)
    assert_finite(run)
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["skipped_updates"] == 1
    assert len(events(tmp_path / "run", "nan")) == 1


def test_a_run_without_a_checkpoint_to_go_back_to_stops(tmp_path):
    with pytest.raises(RunFailed, match="loss was not finite at update 4"):
        train(tmp_path, 8, on_nan="rollback")
    assert not events(tmp_path / "run", "rollback")


@pytest.mark.parametrize("distribution", ["fused", "inline"])
def test_a_run_goes_back_and_on_with_other_random_numbers(distribution, tmp_path):
    first = runnel.train(
        Spy(), "toys:Corridor", "fused", envs=4, steps=4 * STEPS, run_dir=tmp_path / "spy", quiet=True
    )  # fmt: skip
    fragile = Fragile(unlucky=int(first.params["drawn"]))
    run = train(tmp_path, 8, fragile, on_nan="rollback", checkpoint_every_s=1e-9, distribution=distribution)
    assert run.result["status"] == "finished"
    assert run.result["updates"] == 8
    assert run.result["skipped_updates"] == 0
    assert_finite(run)
    (back,) = events(tmp_path / "run", "rollback")
    assert "fragile's learn: loss" in back["reason"]
    steps = [json.loads(line)["env_steps"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


@dataclass(frozen=True)
class Spy(Reinforce):
    """Keeps the number that its fourth update draws."""

    def init(self, key, spec):
        state = super().init(key, spec)
        return State({**state.params, "drawn": jnp.uint32(0)}, state.optimiser)

    def learn(self, state, trajectory, key):
        weights = {name: state.params[name] for name in "wb"}
        new, out = super().learn(State(weights, state.optimiser), trajectory, key)
        drawn = jnp.where(trajectory.version[0] == 3, jax.random.key_data(key)[0], state.params["drawn"])
        return State({**new.params, "drawn": drawn}, new.optimiser), out


def test_workers_tell_what_was_not_finite(tmp_path):
    with pytest.raises(RunFailed, match="fragile's learn: loss was not finite"):
        train(tmp_path, 10, distribution=Coarse(actors=2))
    assert result(tmp_path / "run")["status"] == "failed"
    went_on = runnel.resume(tmp_path / "run", on_nan="skip", quiet=True)
    assert went_on.result["status"] == "finished"
    assert_finite(went_on)


def test_workers_go_back_and_on_with_other_random_numbers(tmp_path):
    first = runnel.train(
        Spy(), "toys:Corridor", "fused", envs=4, steps=4 * STEPS, run_dir=tmp_path / "spy", quiet=True
    )  # fmt: skip
    fragile = Fragile(unlucky=int(first.params["drawn"]))
    run = train(
        tmp_path, 8, fragile, on_nan="rollback", checkpoint_every_s=1e-9, distribution=Coarse(actors=2)
    )  # fmt: skip
    assert (run.result["status"], run.result["updates"]) == ("finished", 8)
    assert len(events(tmp_path / "run", "rollback")) == 1
    assert_finite(run)


def test_a_run_that_goes_back_in_vain_stops(tmp_path):
    with pytest.raises(RunFailed, match=f"after {MAX_ROLLBACKS} returns to a checkpoint, no update went beyond"):
        train(tmp_path, 8, on_nan="rollback", checkpoint_every_s=1e-9)
    assert len(events(tmp_path / "run", "rollback")) == MAX_ROLLBACKS


def test_rollbacks_are_counted_from_zero_after_the_place_is_passed():
    setbacks = NanRollback()
    assert [setbacks.allow(10, 5) for _ in range(MAX_ROLLBACKS + 1)] == [True] * MAX_ROLLBACKS + [False]
    assert setbacks.allow(9, 8) is False  # nearer, not beyond
    assert setbacks.allow(14, 12) is True


def test_the_command_line_takes_the_choice_and_refuses_others(tmp_path, capsys):
    command = ["train", "fragile:Fragile", "toys:Corridor", "--envs", "4", "--steps", str(6 * STEPS), "--quiet"]
    run_dir = str(tmp_path / "run")
    assert main([*command, "--run-dir", run_dir]) == 1
    complaint = capsys.readouterr().err
    assert "fragile's learn: loss was not finite" in complaint
    assert "Traceback" not in complaint
    assert main(["resume", run_dir, "--on-nan", "skip", "--quiet"]) == 0
    with pytest.raises(SystemExit):
        main([*command, "--on-nan", "shrug"])
    with pytest.raises(UserError, match="expected 'stop', 'skip' or 'rollback'"):
        train(tmp_path / "other", 1, on_nan="shrug")
