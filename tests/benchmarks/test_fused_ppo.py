"""What the fused benchmark compares."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnax")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.reference import purejaxrl_ppo


def record(ended: list[list[list[int]]]) -> dict:
    """The reference's record [updates, T, B] of episodes' returns at the steps that ended them; 0: no end."""
    returns = np.asarray(ended, np.float32)
    return {"returned_episode": returns > 0, "returned_episode_returns": np.where(returns > 0, returns, 99)}


def test_the_reference_reports_the_newest_episodes_of_all_updates():
    info = record([[[1, 2], [0, 0]], [[0, 300], [0, 0]], [[0, 0], [500, 700]]])
    assert purejaxrl_ppo.mean_return(info, episodes=2) == 600
    assert purejaxrl_ppo.mean_return(info, episodes=3) == 500


def test_fewer_episodes_than_asked_for_are_averaged_and_none_gives_none():
    assert purejaxrl_ppo.mean_return(record([[[0, 100]], [[200, 0]]])) == 150
    assert purejaxrl_ppo.mean_return(record([[[0, 0]]])) is None
