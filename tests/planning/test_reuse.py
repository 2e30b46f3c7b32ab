"""How often unrolls may be learnt from is said by the algorithm, and refused where a learner cannot keep them."""

from dataclasses import dataclass
from typing import Any

import pytest
from aging import Ages, Between, OneGroupWaits, TeamAges
from toys import Corridor, Tag

from runnel.algorithm import PerGroup
from runnel.algorithms.a2c import A2C
from runnel.distributions.asynchronous import Async
from runnel.distributions.central import Central
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.inline import Inline
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.planning.machine import Machine
from runnel.planning.plan import Distribution, build_plan

ASKS = Ages(reuses=3)


@dataclass(frozen=True)
class Twice(A2C):
    reuses: int = 2


@dataclass(frozen=True)
class Hunter(TeamAges):
    """Tolerates no staleness."""

    bound: int = 0


def planned(algorithm: Any, distribution: Distribution, envs: int = 8) -> Any:
    environment = Tag() if isinstance(algorithm, TeamAges | PerGroup) else Corridor()
    graph = trace(algorithm, environment.spec, envs)
    return build_plan(distribution, graph, environment, Machine(cpus=8, devices=("cpu:0",)))


@pytest.mark.parametrize("distribution", [Async(actors=2), Decoupled(actors=2), Between()])
def test_unrolls_that_may_grow_old_are_reused(distribution):
    plan = planned(ASKS, distribution)
    assert plan.reuses == {"agent": 3}
    assert (
        "reuses=3: an unroll is learnt from up to 3 times, while it is at most 4 updates old and no newer one has come"
        in plan.notes
    )
    assert planned(Ages(), distribution).reuses == {"agent": 1}


@pytest.mark.parametrize("distribution", [Inline(), Coarse(actors=2), Between(sync=True)])
def test_where_no_sample_may_be_old_each_is_learnt_from_once(distribution):
    plan = planned(ASKS, distribution)
    assert plan.reuses == {"agent": 1}
    assert "reuses=3 has no effect: no sample may be old, so each unroll is learnt from once" in plan.notes


@pytest.mark.parametrize(
    ("algorithm", "distribution", "message"),
    [
        (ASKS, Async(actors=2, learners=2), r"2 learners on 2 devices learn together.* use reuses=1, or 1 learner on"),
        (Ages(reuses=2, maps=1), Between(mappers=(1,)), "through 'mapper0', which has 'map' and keeps none"),
        (Ages(reuses=2, replayed=1), Async(actors=2), r"found reuses=2 and a replay; samples_per_insert"),
        (Twice(), Central(actors=2), "unrolls reach 'server' through 'worker', which has 'gradient'"),
        (Ages(reuses=0), Async(actors=2), r"found reuses=0, expected a whole number, 1 or more"),
        (
            PerGroup({"hunter": Hunter(), "runners": TeamAges(reuses=2)}),
            OneGroupWaits(),
            "group hunter waits for its learner at every unroll, so that unrolls are taken in order, each once",
        ),
    ],
)
def test_what_cannot_be_reused_is_refused_with_the_reason(algorithm, distribution, message):
    with pytest.raises(UserError, match=message):
        planned(algorithm, distribution)
