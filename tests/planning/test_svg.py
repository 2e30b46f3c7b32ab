"""Plans as pictures: valid, complete, and no two texts in one place."""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel import distributions
from runnel.algorithm import Algorithm
from runnel.environment import TimeStep
from runnel.execution.building import planned
from runnel.graph.flow import trace
from runnel.planning.plan import REST, Barrier, Distribution, Fragment, Layout, Machine, Plan
from runnel.planning.svg import svg
from runnel.types import Act, AgentSpec, Box, Discrete, EnvSpec

SVG = "{http://www.w3.org/2000/svg}"


class State(NamedTuple):
    params: jax.Array


@dataclass(frozen=True)
class Gradient(Algorithm):
    """An algorithm with every kind of node that a cut can separate."""

    max_staleness: ClassVar[int] = 8

    def init(self, key: Any, spec: AgentSpec) -> State:
        return State(jnp.zeros((64, 64)))

    def act(self, params: Any, observation: Any, memory: Any, key: Any, explore: bool) -> Act:
        return Act(jnp.int32(0), (), {"log_probability": jnp.float32(0), "value": jnp.float32(0)})

    def gradient(self, state: State, batch: Any, key: Any) -> tuple[Any, Any]:
        return state.params, {"loss": batch.reward.mean()}

    def apply(self, state: State, grads: Any) -> State:
        return State(state.params - grads)

    def loop(self, flow: Any) -> None:
        flow.learn(self.learn, flow.map(lambda trajectory: trajectory, flow.rollout(self.act, steps=16)))


class Impatient(Gradient):
    """Runs ahead of nobody, wherever it is put."""

    max_staleness: ClassVar[int] = 0


class Toy:
    """Only its spec is looked at."""

    def __init__(self, *groups: str):
        agents = AgentSpec(Box((4,), np.dtype(np.float32)), Discrete(2))
        self.spec = EnvSpec("Toy & <Friends>", dict.fromkeys(groups or ("agent",), agents))

    def reset(self, key: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def step(self, state: Any, action: Any, key: Any) -> tuple[Any, TimeStep]:
        raise NotImplementedError


@dataclass(frozen=True)
class Scattered(Distribution):
    """Nobody's distribution: a fragment for every node but the rollout, which stands with what acts."""

    def layout(self, graph: Any) -> Layout:
        parts = (
            Fragment("environment", ("environment",), replicas=4, env_splits=4),
            Fragment("act", ("act", "rollout"), replicas=2),
            Fragment("map", ("map",)),
            Fragment("gradient", ("gradient",), replicas=3),
        )
        return Layout((*parts, Fragment("rest", (REST,))), Barrier("step"))


HERE = Machine(8, ("cuda:0", "cuda:1"))
CLUSTER = [Machine(8, ("cuda:0",), f"node-{i}.long.name.of.a <cluster>", f"10.0.0.{i}") for i in range(6)]


def plan_of(distribution: Distribution, *groups: str, algorithm: Algorithm | None = None, machines: Any = HERE) -> Plan:
    toy = Toy(*groups)
    return planned(distribution, trace(algorithm or Gradient(), toy.spec, 64), toy, machines)


def plans() -> dict[str, Plan]:
    made = {}
    for name in distributions.names():
        cls = distributions.load(name)
        made[name] = plan_of(cls())
        flags = {flag: 4 for flag in ("actors", "inference", "learners") if hasattr(cls(), flag)}
        made[f"{name}-4"] = plan_of(cls(**flags))
        made[f"{name}-cluster"] = plan_of(cls(**flags), machines=CLUSTER[:3])
    made["groups"] = plan_of(distributions.load("environments")(), "hunters", "prey", "umpires")
    made["scattered"] = plan_of(Scattered())
    made["scattered-cluster"] = plan_of(Scattered(), machines=CLUSTER)
    made["many"] = plan_of(distributions.load("decoupled")(actors=32, inference=6), machines=CLUSTER)
    made["impatient"] = plan_of(distributions.load("decoupled")(actors=8), algorithm=Impatient())
    return made


PLANS = plans()


@pytest.mark.parametrize("name", PLANS)
def test_everything_of_the_plan_is_in_the_picture(name: str) -> None:
    plan, root = PLANS[name], ElementTree.fromstring(svg(PLANS[name]))
    texts = [text.text or "" for text in root.iter(f"{SVG}text")]
    words = " ".join(texts)
    for fragment in plan.fragments:
        assert any(text.startswith(fragment.name) for text in texts)
        assert all(node in texts for node in fragment.nodes)
    for cut in plan.cuts:
        assert all(what in words for what in cut.what)
    assert all(note in texts for note in plan.notes)
    for fragment in plan.fragments:
        assert fragment.env_splits == 1 or f"in {fragment.env_splits} splits" in texts
    assert sum("an iteration" in text for text in texts) == len(plan.cuts) + 1
    assert len([path for path in root.iter(f"{SVG}path") if path.get("marker-end")]) == len(plan.cuts)


@pytest.mark.parametrize("name", PLANS)
def test_no_text_meets_another_or_leaves_the_picture(name: str) -> None:
    root = ElementTree.fromstring(svg(PLANS[name]))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    extents = []
    for text in root.iter(f"{SVG}text"):
        size, x, y = (float(text.get(key, 0)) for key in ("font-size", "x", "y"))
        wide = len(text.text or "") * size * 0.5
        left = x - (wide / 2 if text.get("text-anchor") == "middle" else 0)
        extents.append((left, y - 0.75 * size, left + wide, y + 0.2 * size, text.text))
    for left, top, right, bottom, _ in extents:
        assert left >= 0
        assert top >= 0
        assert right <= width
        assert bottom <= height
    for a, b in combinations(extents, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a, b)


def test_replicas_are_drawn_one_behind_the_other() -> None:
    boxes = re.findall(r'rx="10"', svg(PLANS["coarse-4"]))
    assert len(boxes) == 3 + 1  # an actor and two behind it, and the learner


def test_boxes_say_on_which_machines_their_workers_run() -> None:
    plan, texts = PLANS["many"], _texts("many")
    assert f"at {plan.host('learner')}" in texts
    assert any(text.endswith("at 3 other machines") for text in texts)
    assert any(text.startswith("across machines: ") for text in texts)
    assert any(text.endswith("39 workers on 6 machines") for text in texts)
    assert not any(" at " in text for text in _texts("coarse-4"))


def _texts(name: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg(PLANS[name])).iter(f"{SVG}text")]
