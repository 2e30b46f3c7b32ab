"""The policies that a run keeps: which are removed, how they are named and found, and where they lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies
from paths import ROOT

from runnel.config import spec_json
from runnel.config.policy_config import PolicyConfig
from runnel.errors import UserError
from runnel.recording import parameters
from runnel.recording.policy_directory import group_directory
from runnel.recording.policy_store import BEST, LATEST, PolicyStore, Retention, Snapshot
from runnel.types import AgentSpec, Box, Discrete

SPEC = AgentSpec(Box((2,)), Discrete(2))


def config(version: int, group: str = "agent", score: float | None = None, **more: Any) -> PolicyConfig:
    metadata = {} if score is None else {"score": score}
    given = {"env_steps": 10 * version, "time": 1.0 + version, "metadata": metadata, **more}
    return PolicyConfig({"class": "toys:Reinforce", "settings": {}}, group, SPEC, version=version, **given)


def arrays(version: int) -> dict[str, np.ndarray]:
    return {"params/w": np.full((2, 2), version, np.float32), "params/b": np.arange(2)}


@pytest.fixture
def store(tmp_path: Path) -> PolicyStore:
    return PolicyStore(tmp_path)


def fill(
    store: PolicyStore, versions: Sequence[int], group: str = "agent", scores: Sequence[float | None] = ()
) -> None:
    for k, version in enumerate(versions):
        store.add(config(version, group, scores[k] if scores else None), arrays(version))


def versions(found: Sequence[Snapshot]) -> list[int]:
    return [snapshot.version for snapshot in found]


# What is stored


def test_a_snapshot_is_read_as_it_was_written(store: PolicyStore) -> None:
    given = {
        "params/w": np.array([[1.5, -2.0]], np.float32), "half": np.float16([1, 2]), "wide": np.array(3, np.int64),
        "brain": np.array([1.5, 2.5], ml_dtypes.bfloat16), "flag": np.array([True, False]), "none": np.zeros((0, 3)),
        "turned": np.arange(6, dtype=np.uint8).reshape(2, 3).T,
    }  # fmt: skip
    store.add(config(7, score=1.5, acting=("params/w",), trained_on="Walk"), given)
    (found,) = store
    assert (found.version, found.env_steps, found.score, found.group) == (7, 70, 1.5, "agent")
    assert (found.config.acting, found.config.trained_on) == (("params/w",), "Walk")
    assert spec_json.to_json(found.config.spec) == spec_json.to_json(SPEC)
    read = found.arrays()
    assert read.keys() == given.keys()
    for name, array in given.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert sorted(path.name for path in found.path.iterdir()) == ["config.json", "model.safetensors"]
    import safetensors.numpy

    np.testing.assert_array_equal(safetensors.numpy.load_file(found.path / "model.safetensors")["flag"], given["flag"])


def test_a_version_that_is_stored_again_is_replaced(store: PolicyStore) -> None:
    fill(store, [1])
    store.add(config(1, score=4.0), {"params/w": np.ones(3)})
    (found,) = store
    assert found.score == 4.0
    assert list(found.arrays()) == ["params/w"]
    assert sorted(path.name for path in found.path.parent.iterdir()) == [found.path.name]


def test_what_a_killed_run_was_writing_is_neither_listed_nor_in_the_way(store: PolicyStore) -> None:
    fill(store, [1])
    left = store.run_dir / "policies" / group_directory("agent") / f".writing-{os.getpid()}"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half")
    assert versions(list(store)) == [1]
    fill(store, [2])
    assert versions(list(store)) == [1, 2]
    assert not left.exists()


def test_notes_are_added_to_a_snapshot_and_nothing_is_made_for_one_that_is_gone(store: PolicyStore) -> None:
    fill(store, [1, 2])
    store.annotate("agent", 1, {"score": 3.0, "eval/return": 3.0})
    store.annotate("agent", 1, {"note": "good"})
    store.annotate("agent", 5, {"score": 9.0})
    store.annotate("nobody", 1, {"score": 9.0})
    assert [snapshot.metadata for snapshot in store] == [{"score": 3.0, "eval/return": 3.0, "note": "good"}, {}]
    np.testing.assert_array_equal(store.query(version=1)[0].arrays()["params/w"], arrays(1)["params/w"])


@given(
    tree=strategies.recursive(
        strategies.just(None),
        lambda inner: strategies.dictionaries(strategies.text("ab/%.é", min_size=1, max_size=4), inner, max_size=3),
        max_leaves=8,
    )
)
def test_no_two_leaves_of_a_state_share_a_name(tree: Any) -> None:
    import jax

    numbered = jax.tree.map(lambda _: np.zeros(2), tree, is_leaf=lambda x: x is None)
    found = parameters.parameter_leaves(numbered) if isinstance(numbered, dict) and numbered else {}
    assert len(found) == (len(jax.tree.leaves(numbered)) if isinstance(numbered, dict) else 0)


# Groups


ODD = ["a/b", "..", ".", "Ü", "", "a b", "%2F", "a%2Fb", "/etc", "\n", "group-", "~", "x" * 60, "a\\b", "-", "con:"]


def test_names_of_groups_stay_inside_the_directory(store: PolicyStore) -> None:
    for k, group in enumerate(ODD):
        store.add(config(k, group), arrays(k))
    assert store.groups() == sorted(ODD)
    assert {snapshot.group: snapshot.version for snapshot in store} == {group: k for k, group in enumerate(ODD)}
    for k, group in enumerate(ODD):
        (found,) = store.query(group)
        assert found.version == k
        assert found.path.parent.parent == store.run_dir / "policies"
        store.tag("mine", k, group)
        store.annotate(group, k, {"score": 1.0})
        assert store.query(group)[0].tags == (BEST, "mine", LATEST)
    assert sorted(path.name for path in store.run_dir.iterdir()) == ["policies"]


@given(strategies.text())
def test_any_name_of_a_group_is_one_plain_name_of_a_directory_and_no_other_s(group: str) -> None:
    from urllib.parse import unquote

    try:
        name = group_directory(group)
    except UserError:
        return
    assert "/" not in name
    assert name not in (".", "..")
    assert name.isascii()
    assert unquote(name.removeprefix("group-")) == group


# Queries


def test_queries_find_by_group_version_tag_and_metadata(store: PolicyStore) -> None:
    fill(store, [1, 2, 3], "hunter", [1.0, 5.0, None])
    fill(store, [2, 4], "runners", [2.0, 2.0])
    store.tag("mine", 2)
    assert [(s.group, s.version) for s in store] == [
        ("hunter", 1), ("hunter", 2), ("runners", 2), ("hunter", 3), ("runners", 4),
    ]  # fmt: skip
    assert len(store) == 5
    assert versions(store.query("hunter")) == [1, 2, 3]
    assert [(s.group, s.version) for s in store.query(version=2)] == [("hunter", 2), ("runners", 2)]
    assert [(s.group, s.version) for s in store.query(tag=BEST)] == [("hunter", 2), ("runners", 2)]
    assert [(s.group, s.version) for s in store.query(tag=LATEST)] == [("hunter", 3), ("runners", 4)]
    assert [(s.group, s.version) for s in store.query("runners", tag="mine")] == [("runners", 2)]
    assert versions(store.query(where={"score": lambda x: x > 1.5})) == [2, 2, 4]
    assert versions(store.query(where={"score": 2.0})) == [2, 4]
    assert store.query(where={"nothing": lambda x: True}) == []
    assert store.query("nobody") == []


def test_find_names_what_is_there_where_nothing_is_found(store: PolicyStore) -> None:
    with pytest.raises(UserError, match="has no stored policy yet"):
        store.find(LATEST)
    fill(store, [1, 2])
    store.tag("before-change", 1)
    assert store.find("2")["agent"].version == store.find(LATEST)["agent"].version == 2
    for tag, words in [
        ("befor-change", "no policy 'befor-change'; did you mean 'before-change'"),
        ("lates", "did you mean 'latest'"),
        (BEST, r"nothing was evaluated yet"),
        ("3", "no policy '3'"),
        ("٢" * 3, "no policy"),
    ]:
        with pytest.raises(UserError, match=words):
            store.find(tag)
    with pytest.raises(UserError, match="no policy of group 'agnt'; did you mean 'agent'"):
        store.find(LATEST, "agnt")


def test_of_equal_scores_the_first_is_the_best_and_what_is_no_number_is_no_score(store: PolicyStore) -> None:
    fill(store, [1, 2, 3, 4, 5], scores=[1.0, 3.0, 3.0, float("nan"), None])
    assert versions(store.query(tag=BEST)) == [2]
    store.annotate("agent", 5, {"score": "a lot"})
    assert versions(store.query(tag=BEST)) == [2]


# Tags


def test_a_tag_moves_and_is_removed(store: PolicyStore) -> None:
    fill(store, [1, 2, 3])
    (tagged,) = store.tag("mine").values()
    assert (tagged.version, tagged.tags) == (3, ("mine", "latest"))
    assert repr(tagged) == "Snapshot('agent', version 3, 30 steps, mine, latest)"
    store.tag("mine", 1)
    assert versions(store.query(tag="mine")) == [1]
    store.tag("yours", "mine")
    assert store.query(version=1)[0].tags == ("mine", "yours")
    store.untag("mine")
    assert store.query(tag="mine") == []
    with pytest.raises(UserError, match="no tag 'mine'"):
        store.untag("mine")
    assert json.loads((store.run_dir / "policies" / "tags.json").read_text()) == {"yours": {"agent": 1}}


def test_tags_are_of_each_group(store: PolicyStore) -> None:
    fill(store, [1, 2], "a")
    fill(store, [1, 2], "b")
    store.tag("mine", 1)
    store.tag("mine", 2, group="b")
    assert [(s.group, s.version) for s in store.query(tag="mine")] == [("a", 1), ("b", 2)]
    with pytest.raises(UserError, match="no policy"):
        store.tag("mine", 9)
    assert [(s.group, s.version) for s in store.query(tag="mine")] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    "tag", [LATEST, BEST, "", "1", "12", "a/b", "..", "a b", "-x", "x" * 101, "a\n", "a@b", "\ud800"]
)
def test_what_is_no_tag_is_refused(tag: str, store: PolicyStore) -> None:
    fill(store, [1])
    with pytest.raises(UserError, match="expected a letter") as caught:
        store.tag(tag)
    assert len(str(caught.value).splitlines()) <= 2
    assert store.tags() == {}


# What is kept


def test_the_rule_keeps_the_newest_the_best_the_tagged_and_one_of_each_period(store: PolicyStore) -> None:
    scores = [0.0, 9.0, 1.0, 8.0, None, 2.0, None, 3.0, None, None]
    fill(store, range(10), scores=scores)  # at steps 0, 10, ..., 90
    store.tag("mine", 4)
    store.prune(Retention(every_steps=30, best=2))
    assert versions(list(store)) == [0, 1, 3, 4, 6, 9]
    store.prune(Retention(every_steps=30, best=2))
    assert versions(list(store)) == [0, 1, 3, 4, 6, 9]
    store.untag("mine")
    store.prune(Retention(best=0))
    assert versions(list(store)) == [9]


def test_each_group_keeps_its_own(store: PolicyStore) -> None:
    fill(store, [1, 2, 3], "a", [5.0, 1.0, 2.0])
    fill(store, [1, 2, 3], "b", [1.0, 5.0, 2.0])
    store.prune(Retention())
    assert [(s.group, s.version) for s in store] == [("a", 1), ("b", 2), ("a", 3), ("b", 3)]


def test_what_was_made_after_a_point_is_removed_but_for_what_is_tagged(store: PolicyStore) -> None:
    fill(store, [1, 2, 3, 4], scores=[0.0, 1.0, 2.0, 3.0])
    store.tag("mine", 3)
    store.rewind(20)
    assert versions(list(store)) == [1, 2, 3]
    assert store.find("latest")["agent"].version == 2  # the run is there again; what is tagged is of another future
    store.rewind(-1)
    assert versions(list(store)) == [3]


@given(
    points=strategies.lists(
        strategies.tuples(
            strategies.integers(0, 200), strategies.none() | strategies.floats(-3, 3), strategies.booleans()
        ),
        max_size=25,
        unique_by=lambda point: point[0],
    ),
    every_steps=strategies.one_of(strategies.none(), strategies.integers(1, 300)),
    every_s=strategies.one_of(strategies.none(), strategies.floats(0.5, 50)),
    best=strategies.integers(0, 4),
)  # fmt: skip
def test_the_rule_by_its_definition(points: Any, every_steps: Any, every_s: Any, best: int) -> None:
    snapshots = [
        Snapshot(
            Path(), config(steps, score=score, env_steps=steps, time=1000 + steps / 7), ("mine",) if tagged else ()
        )
        for steps, score, tagged in sorted(points)
    ]
    rule = Retention(every_steps, every_s, best)
    kept = rule.kept(snapshots)
    assert [s for s in snapshots if s in kept] == kept  # in order
    if not snapshots:
        return
    assert snapshots[-1] in kept
    assert all(s in kept for s in snapshots if s.tags)
    scores = sorted((s.score for s in snapshots if s.score is not None), reverse=True)
    assert all(s in kept for s in snapshots if s.score is not None and len(scores) > best and s.score > scores[best])
    assert sum(s.score is not None for s in kept) >= min(best, len(scores))
    began = snapshots[0].config.time
    for period, at in ((every_steps, lambda s: s.env_steps), (every_s, lambda s: s.config.time - began)):
        if period is not None:
            buckets = {int(at(s) // period) for s in snapshots}
            assert {int(at(s) // period) for s in kept} == buckets
    # Pruning again removes nothing: what is kept does not depend on what was removed.
    assert rule.kept(kept) == kept


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    script=strategies.lists(
        strategies.one_of(
            strategies.tuples(strategies.just("add"), strategies.sampled_from("ab"), strategies.integers(0, 9)),
            strategies.tuples(strategies.just("tag"), strategies.sampled_from("xyz"), strategies.integers(0, 9)),
            strategies.tuples(strategies.just("prune"), strategies.integers(0, 2), strategies.just(0)),
            strategies.tuples(strategies.just("rewind"), strategies.integers(-1, 90), strategies.just(0)),
        ),
        max_size=14,
    )
)  # fmt: skip
def test_whatever_is_done_what_is_tagged_is_there(script: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = PolicyStore(tmp_path_factory.mktemp("store"))
    tagged: dict[str, dict[str, int]] = {}
    for what, name, number in script:
        if what == "add":
            store.add(config(number, name, score=float(number % 3)), arrays(number))
        elif what == "tag":
            try:
                found = store.tag(name, number)
            except UserError:
                continue
            tagged.setdefault(name, {}).update(dict.fromkeys(found, number))
        elif what == "prune":
            store.prune(Retention(best=name))
        else:
            store.rewind(name)
    for tag, wanted in tagged.items():
        assert {s.group: s.version for s in store.query(tag=tag)} == wanted
        for snapshot in store.query(tag=tag):
            np.testing.assert_array_equal(snapshot.arrays()["params/w"], arrays(snapshot.version)["params/w"])


TAGGER = """
import sys
from runnel.errors import UserError
from runnel.recording.policy_store import PolicyStore
store, tagged = PolicyStore(sys.argv[1]), {}
print("ready", flush=True)
for k in range(12):
    for tag, version in tagged.items():
        found = store.query(tag=tag)
        assert [s.version for s in found] == [version], (tag, version, found)
    newest = store.tag(f"t{k}")["agent"]
    newest.arrays()
    tagged[f"t{k}"] = newest.version
print(*tagged.values())
"""


def test_what_a_user_tags_while_the_run_prunes_stays(store: PolicyStore) -> None:
    fill(store, [0])
    with subprocess.Popen(
        [sys.executable, "-c", TAGGER, str(store.run_dir)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    ) as user:  # fmt: skip
        assert user.stdout is not None
        assert user.stderr is not None
        assert user.stdout.readline() == "ready\n", user.stderr.read()
        version = 0
        while user.poll() is None:
            version += 1
            store.add(config(version), arrays(version))
            store.prune(Retention(best=0))
        told = [int(word) for word in user.stdout.read().split()]
        assert user.returncode == 0, user.stderr.read()
    assert len(told) == 12
    assert set(told) <= set(versions(list(store)))
    for snapshot in store:
        np.testing.assert_array_equal(snapshot.arrays()["params/w"], arrays(snapshot.version)["params/w"])
