"""Episodes in progress can be rebuilt from their actions, whatever the order of ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.runtime.recovery import action_history
from runnel.runtime.recovery.action_history import ActionHistory, PrivateBuffers, pack, unpack


def new(envs, steps=1):
    return ActionHistory(envs, PrivateBuffers({"agent": ((envs,), np.dtype(np.int32))}, steps))


def play(envs, unrolls):
    """A history of unrolls of numbered actions, and a plain list of each environment's actions since its last end."""
    kept, plain, number = new(envs), [[] for _ in range(envs)], 0
    for done in unrolls:
        steps = done.shape[0]
        actions = np.arange(number, number + steps * envs, dtype=np.int32).reshape(steps, envs)
        number += steps * envs
        for t in range(steps):
            for e in range(envs):
                plain[e].append(int(actions[t, e]))
                if done[t, e]:
                    plain[e].clear()
        kept.add({"agent": actions}, done)
    return kept, plain


@st.composite
def unrolls(draw):
    envs, steps = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    flags = st.lists(st.booleans(), min_size=steps * envs, max_size=steps * envs)
    ends = draw(st.lists(flags, min_size=1, max_size=6))
    return envs, [np.array(end).reshape(steps, envs) for end in ends]


@given(unrolls())
@settings(max_examples=100, deadline=None)
def test_every_episode_in_progress_has_all_its_actions(case):
    envs, ends = case
    kept, plain = play(envs, ends)
    episodes, cut = kept.episodes(range(envs))
    assert not cut.any()
    assert [list(e.actions.get("agent", [])) for e in episodes] == plain


@given(unrolls(), unrolls())
@settings(max_examples=50, deadline=None)
def test_a_restored_history_goes_on_like_the_one_it_was_packed_from(case, more):
    envs, ends = case
    kept, _ = play(envs, ends)
    other = new(envs)
    episodes, _ = kept.episodes(range(envs))
    other.restore(unpack(pack(episodes)), kept.end)
    done = np.resize(more[1][0], (3, envs))
    actions = {"agent": np.arange(3 * envs, dtype=np.int32).reshape(3, envs)}
    for one in (kept, other):
        one.add(actions, done)
    first, second = kept.episodes(range(envs))[0], other.episodes(range(envs))[0]
    for a, b in zip(first, second, strict=True):
        assert list(a.actions.get("agent", [])) == list(b.actions.get("agent", []))


def test_memory_does_not_grow_while_episodes_are_short():
    asked: list[int] = []

    class Counted(PrivateBuffers):
        def buffer(self, number):
            asked.append(number)
            return super().buffer(number)

    kept = ActionHistory(2, Counted({"agent": ((2,), np.dtype(np.int32))}, 4))
    done = np.zeros((4, 2), bool)
    done[-1] = True
    for _ in range(100):
        kept.add({"agent": np.zeros((4, 2), np.int32)}, done)
    assert asked == [0], "a larger buffer was asked for"


def test_an_episode_longer_than_its_room_moves_to_a_larger_one():
    kept = new(1, 1)
    for step in range(1000):
        kept.add({"agent": np.full((1, 1), step, np.int32)}, np.zeros((1, 1), bool))
    (episode,), cut = kept.episodes([0])
    assert not cut.any()
    assert episode.actions["agent"].tolist() == list(range(1000))


def test_an_episode_too_long_to_keep_is_cut_and_its_successor_begun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(action_history, "LIMIT_BYTES", 100)
    kept = new(1, 8)
    for _ in range(10):
        kept.add({"agent": np.zeros((8, 1), np.int32)}, np.zeros((8, 1), bool))
    (episode,), cut = kept.episodes([7])
    assert cut.tolist() == [True]
    assert episode.number == 8
    assert len(episode.actions["agent"]) == 0
