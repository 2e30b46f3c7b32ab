"""Rules of populations as pure functions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel import PBT, Decision, LogUniform, Uniform, UserError
from runnel.population import random_numbers

RULE = PBT(perturb={"learning_rate": LogUniform(1e-4, 1e-2)}, resample={"entropy_cost": Uniform(0.0, 0.1)})

scores_of_members = st.lists(st.floats(-1e6, 1e6) | st.just(-np.inf), min_size=2, max_size=40).map(np.array)


def decided(rule: PBT, scores: np.ndarray, seed: int = 3, round: int = 1) -> list[Decision]:
    settings = rule.initial(random_numbers(seed, 0), len(scores))
    return rule.decide(random_numbers(seed, round), round, scores, settings)


@given(scores_of_members, st.sampled_from([0.1, 0.25, 0.5]), st.integers(0, 2**32 - 1))
def test_the_worst_become_copies_of_the_best(scores: np.ndarray, quantile: float, seed: int) -> None:
    decisions = decided(PBT(quantile=quantile, perturb=RULE.perturb), scores, seed)
    copies = [member for member, each in enumerate(decisions) if each.parent != member]
    parents = {decisions[member].parent for member in copies}
    assert not parents & set(copies), "a member whose state is copied keeps its own"
    if not np.isfinite(scores).any():
        return
    failed = [member for member in range(len(scores)) if not np.isfinite(scores[member])]
    count = max(1, int(quantile * len(scores)))
    assert set(failed) <= set(copies)
    assert len(copies) <= max(count, len(failed))
    assert len(copies) == max(count, len(failed)) or len(scores) - len(failed) <= count
    assert len({*parents}) <= count
    kept = [member for member in range(len(scores)) if member not in copies]
    assert all(scores[parent] >= np.sort(scores[kept])[-count:].min() for parent in parents)
    assert all(not each.settings for each in decisions if each.parent == decisions.index(each))


@given(st.integers(0, 2**32 - 1), st.integers(1, 1000))
def test_a_decision_depends_on_seed_and_round_alone(seed: int, round: int) -> None:
    scores = np.arange(8.0)
    assert decided(RULE, scores, seed, round) == decided(RULE, scores, seed, round)


def test_other_rounds_draw_other_numbers() -> None:
    drawn = {str(decided(RULE, np.arange(8.0), round=round)) for round in range(1, 9)}
    assert len(drawn) == 8


@given(st.integers(0, 2**32 - 1))
def test_settings_stay_in_their_ranges(seed: int) -> None:
    settings = RULE.initial(random_numbers(seed, 0), 4)
    for round in range(1, 30):
        found = RULE.decide(random_numbers(seed, round), round, np.arange(4.0), settings)
        settings = [{**settings[each.parent], **each.settings} for each in found]
        assert all(1e-4 <= each["learning_rate"] <= 1e-2 and 0 <= each["entropy_cost"] <= 0.1 for each in settings)


def test_a_copy_multiplies_one_setting_and_draws_the_other_again() -> None:
    settings = [{"learning_rate": 1e-3, "entropy_cost": 0.05}] * 4
    found = RULE.decide(random_numbers(0, 1), 1, np.arange(4.0), settings)[0]
    assert found.parent == 3
    assert found.settings["learning_rate"] in (1e-3 * 0.8, 1e-3 * 1.25)
    assert found.settings["entropy_cost"] != 0.05


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: PBT(quantile=0.6), "quantile=0.6: found 0.6, expected more than 0 and at most 0.5"),
        (lambda: PBT(quantile=0.0), "quantile=0.0"),
        (lambda: PBT(factors=()), "expected positive numbers"),
        (lambda: PBT(perturb={"a": Uniform(0, 1)}, resample={"a": Uniform(0, 1)}), "found a in perturb= and resample="),
        (lambda: PBT(perturb={"a": (0, 1)}), r"a: found \(0, 1\), expected Uniform"),
        (lambda: PBT(perturb={"a": LogUniform(0, 1)}), "two positive numbers"),
        (lambda: PBT(resample={"a": Uniform(2, 1)}), "the lower one first"),
    ],
)
def test_a_mistake_in_a_rule_is_said(make: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        make()
