"""Settings that an algorithm leaves to the plan are decided at start, stored, and kept or decided again on
resumption."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aging import OneGroupWaits
from toys import Tag

import runnel
from runnel.algorithm import Algorithm, PerGroup
from runnel.algorithms.a2c import A2C
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.execution.building import build, read_config, rebuild
from runnel.execution.config_file import arguments
from runnel.execution.training import resolve

SMALL = PPO(unroll=4, epochs=1, minibatches=1, hidden=(4,))


@dataclass(frozen=True)
class Own(A2C):
    """A user's own, which leaves another setting to the plan."""

    weights: bool | None = None
    hidden: tuple[int, ...] = (4,)

    def for_staleness(self, staleness: int) -> Algorithm:
        return self if self.weights is not None else replace(self, weights=staleness > 0)


@dataclass(frozen=True)
class Other(A2C):
    hidden: tuple[int, ...] = (4,)

    def for_staleness(self, staleness: int) -> Algorithm:
        return A2C()


@pytest.mark.parametrize(
    ("kind", "waiting", "free"),
    [
        (PPO, ["inline", "fused", "coarse", "fine", "replicated", "environments"], ["async", "decoupled"]),
        (MAPPO, ["coarse"], ["async"]),
    ],
)
def test_advantages_are_corrected_where_samples_may_be_old(kind, waiting, free):
    small = kind(unroll=4, epochs=1, minibatches=1, hidden=(4,))
    for name in waiting:
        built = build(small, "toys:Corridor", name, 8)
        assert (built.algorithm, built.asked) == (replace(small, advantages="gae"), {"advantages": "auto"}), name
        assert built.graph.algorithm is built.algorithm
        assert built.plan.staleness_updates == {"agent": 0}
        assert built.plan.notes[-1] == "advantages=auto is gae here: no sample is old"
        assert built.max_staleness == 2  # what advice about other distributions goes by
    for name in free:
        built = build(small, "toys:Corridor", name, 8)
        assert built.algorithm == replace(small, advantages="vtrace")
        assert built.graph.algorithm is built.algorithm
        assert built.plan.staleness_updates == {"agent": 2}
        assert built.plan.notes[-1] == "advantages=auto is vtrace here: samples may be 2 updates old"


def test_what_the_user_says_is_not_decided():
    for asked, staleness in (("gae", 0), ("vtrace", 2)):
        given = replace(SMALL, advantages=asked)
        built = build(given, "toys:Corridor", "async", 8)
        assert built.algorithm == given
        assert built.plan.staleness_updates == {"agent": staleness}
        assert (dict(built.asked), built.decided) == ({}, ())


def test_a_users_own_algorithm_leaves_a_setting_to_the_plan():
    assert build(Own(), "toys:Corridor", "inline", 8).algorithm == Own(weights=False)
    built = build(Own(), "toys:Corridor", "async", 8)
    assert (built.algorithm, built.asked) == (Own(weights=True), {"weights": None})
    assert built.plan.notes[-1] == "weights=none is true here: samples may be 16 updates old"
    with pytest.raises(UserError, match=r"Other\.for_staleness returns a A2C, expected itself, or the same class"):
        build(Other(), "toys:Corridor", "async", 8)


def test_each_group_is_decided_by_its_own_staleness():
    """The hunter's actors wait for its learner, the runners' do not."""
    both = PerGroup({"hunter": SMALL, "runners": SMALL})
    built = build(both, Tag, OneGroupWaits(staleness=1), 8)
    assert built.plan.staleness_updates == {"hunter": 0, "runners": 1}
    decided = {group: built.algorithm.for_group(group).advantages for group in ("hunter", "runners")}  # type: ignore
    assert decided == {"hunter": "gae", "runners": "vtrace"}
    assert built.asked == {"hunter.advantages": "auto", "runners.advantages": "auto"}
    assert built.plan.notes[-2:] == (
        "hunter.advantages=auto is gae here: no sample is old",
        "runners.advantages=auto is vtrace here: samples may be an update old",
    )
    alike = build(SMALL, Tag, OneGroupWaits(staleness=1), 8)  # one algorithm for both: that of the stalest
    assert alike.algorithm == replace(SMALL, advantages="vtrace")


# Stored, and resumed


def stored(run_dir: Path, algorithm: Any, distribution: str) -> dict[str, Any]:
    """The configuration of a run, as one that is started would have it."""
    run_dir.mkdir()
    config = resolve(algorithm, "gymnax:CartPole-v1", distribution, envs=8, steps=64)
    (run_dir / "config.json").write_text(json.dumps(config))
    return read_config(run_dir)


def test_what_was_decided_is_stored_and_kept(tmp_path):
    config = stored(tmp_path / "run", SMALL, "coarse")
    assert config["algorithm"]["settings"]["advantages"] == "gae"
    assert config["algorithm"]["asked"] == {"advantages": "auto"}
    again = rebuild(tmp_path / "run", config)
    assert again.algorithm == replace(SMALL, advantages="gae")
    assert again.plan.notes[-1] == "advantages=auto is gae, as the run began"
    anew = arguments(tmp_path / "run")  # another run with the same configuration: its own plan decides
    assert anew["algorithm"] == SMALL


@pytest.mark.parametrize(
    ("before", "after", "found", "note"),
    [
        ("coarse", "async", "vtrace", "advantages=auto is now vtrace instead of gae: samples may be 2 updates old"),
        ("async", "decoupled", "vtrace", "advantages=auto is vtrace, as the run began"),
        ("async", "coarse", "vtrace", "advantages=auto is vtrace, as the run began"),  # right there, too
        ("async", "fused", "vtrace", "advantages=auto is vtrace, as the run began"),
        ("inline", "fine", "gae", "advantages=auto is gae, as the run began"),
    ],
)
def test_another_distribution_keeps_what_was_decided_unless_it_cannot(before, after, found, note, tmp_path):
    config = stored(tmp_path / "run", SMALL, before)
    built = rebuild(tmp_path / "run", config, after)
    assert built.algorithm == replace(SMALL, advantages=found)
    assert built.plan.notes[-1] == note
    assert built.asked == {"advantages": "auto"}  # and so it can be decided anew once more


def test_what_the_user_said_is_kept_wherever_it_is_resumed(tmp_path):
    config = stored(tmp_path / "run", replace(SMALL, advantages="gae"), "coarse")
    assert "asked" not in config["algorithm"]
    built = rebuild(tmp_path / "run", config, "async")
    assert built.algorithm == replace(SMALL, advantages="gae")
    assert built.plan.synchronous


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("auto", "found asked='auto' of an algorithm, expected settings by name"),
        ({"nothing": 1}, "PPO has no setting 'nothing', which its run asked for"),
        ({"advantages": {"object": "os:system"}}, "expected a setting that names no code"),
        ({"advantages": "td"}, "its run asked for advantages='td', expected"),
        ({"learning_rate": "fast"}, "its run asked for learning_rate='fast', expected"),
    ],
)
def test_a_changed_file_is_refused_in_words(asked, message, tmp_path):
    config = stored(tmp_path / "run", SMALL, "coarse")
    config["algorithm"]["asked"] = asked
    with pytest.raises(UserError, match=message):
        rebuild(tmp_path / "run", config)


@pytest.mark.slow
def test_a_run_that_goes_on_asynchronously_is_corrected_from_then_on(tmp_path):
    run = runnel.train(SMALL, "CartPole-v1", "inline", envs=8, steps=64, run_dir=tmp_path / "run", quiet=True)
    assert run.built is not None
    assert run.built.algorithm == replace(SMALL, advantages="gae")
    more = runnel.resume(tmp_path / "run", steps=640, distribution="async", actors=2, quiet=True)
    assert more.result["status"] == "finished"
    kept = read_config(tmp_path / "run")["algorithm"]
    assert (kept["settings"]["advantages"], kept["asked"]) == ("vtrace", {"advantages": "auto"})
