"""Replay in the loop: how often batches are drawn, what they hold, and whom the priorities reach."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from toys import Corridor, Reinforce, State

from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.replay import PrioritisedReplay, SequenceReplay, UniformReplay
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.stepped import SteppedProgram


def flat(trajectory):
    return {"reward": trajectory.reward.reshape(-1), "number": trajectory.extras.reshape(-1)}


@dataclass(frozen=True)
class Counting(Reinforce):
    """Learns nothing; counts the batches it is given."""

    batch: int = 4
    min_size: int = 64
    samples_per_insert: float = 0.5
    unroll: int = 2
    kind: object = UniformReplay(capacity=128)

    def init(self, key, spec):
        return State({**super().init(key, spec).params, "batches": jnp.int32(0)}, ())

    def act(self, params, observation, memory, key, explore):
        act = super().act(params, observation, memory, key, explore)
        return act._replace(extras=params["batches"])

    def learn(self, state, batch, key):
        batches = state.params["batches"] + 1
        return State({**state.params, "batches": batches}, ()), {"batches": batches}

    def loop(self, flow):
        items = flow.map(flat, flow.rollout(self.act, steps=self.unroll))
        replay = flow.replay(self.kind)
        replay.insert(items)
        flow.learn(self.learn, replay.sample(self.batch, self.min_size, self.samples_per_insert))


def run(algorithm, iterations, envs=8):
    program = SteppedProgram(Loop(trace(algorithm, Corridor.spec, envs), Corridor()), None, 0)
    progress = program.run(iterations, 60, np.inf, lambda: False)
    return program, progress


@pytest.mark.parametrize(
    ("per_insert", "batch"),
    [(0.3, 4), (8.0, 16), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((0.5, 4), (1.0, 5)))],
)
def test_each_item_is_sampled_as_often_as_asked_once_there_are_enough(per_insert, batch):
    iterations, inserted = 12, 12 * 16
    algorithm = Counting(samples_per_insert=per_insert, batch=batch)
    _, progress = run(algorithm, iterations)
    assert progress.updates == int((inserted - 64) * per_insert / batch + 1e-4)


def test_nothing_is_sampled_before_min_size():
    _, progress = run(Counting(), 4)  # 64 items: from the next on
    assert progress.updates == 0
    assert progress.out == {}


def test_a_replay_too_small_for_its_min_size_is_refused():
    with pytest.raises(UserError, match="room for 32 can never hold min_size 64"):
        trace(Counting(kind=UniformReplay(32)), Corridor.spec, 8)


def test_sample_before_insert_and_update_without_priorities_are_refused():
    class Early(Counting):
        def loop(self, flow):
            flow.replay(self.kind).sample(4)

    with pytest.raises(UserError, match="insert this iteration's items first"):
        trace(Early(), Corridor.spec, 8)

    class Uniform(Counting):
        def loop(self, flow):
            replay = flow.replay(self.kind)
            replay.insert(flow.map(flat, flow.rollout(self.act, steps=2)))
            out = flow.learn(self.learn, replay.sample(4))
            replay.update(out["batches"])

    with pytest.raises(UserError, match="needs a PrioritisedReplay"):
        trace(Uniform(), Corridor.spec, 8)


def test_priorities_decide_what_is_drawn():
    @dataclass(frozen=True)
    class Picky(Counting):
        """Gives items of reward 1 all the priority."""

        def learn(self, state, batch, key):
            state, out = super().learn(state, batch, key)
            good = batch.items["reward"] > 0
            return state, {**out, "good": good.mean(), "priority": jnp.where(good, 1.0, 1e-6)}

        def loop(self, flow):
            replay = flow.replay(self.kind)
            replay.insert(flow.map(flat, flow.rollout(self.act, steps=self.unroll)))
            out = flow.learn(self.learn, replay.sample(self.batch, self.min_size, self.samples_per_insert))
            replay.update(out["priority"])

    settings = dict(batch=32, min_size=128, samples_per_insert=8.0, unroll=16)
    uniform_share = run(Picky(kind=PrioritisedReplay(4096, exponent=0.0), **settings), 12)[1].out["good"]
    picky_share = run(Picky(kind=PrioritisedReplay(4096, exponent=1.0), **settings), 12)[1].out["good"]
    assert picky_share > 1.5 * uniform_share


def test_priorities_of_the_wrong_shape_are_refused():
    class Wrong(Counting):
        def learn(self, state, batch, key):
            return state, {"priority": jnp.zeros(3)}

        def loop(self, flow):
            replay = flow.replay(PrioritisedReplay(128))
            replay.insert(flow.map(flat, flow.rollout(self.act, steps=2)))
            replay.update(flow.learn(self.learn, replay.sample(4))["priority"])

    with pytest.raises(UserError, match=r"found priorities float32\[3\], expected \[4\]"):
        trace(Wrong(), Corridor.spec, 8)


def test_sequences_come_in_order_and_time_first():
    class Ordered(Counting):
        def learn(self, state, batch, key):
            state, out = super().learn(state, batch, key)
            assert batch["clock"].shape == (6, 4)
            clock = batch["clock"]
            follows = (clock[1:] == clock[:-1] + 1) | (clock[1:] == 0)
            return state, {**out, "in_order": follows.mean()}

        def loop(self, flow):
            def steps(trajectory):
                return {"clock": jnp.round(trajectory.observation[..., 1] * 20).astype(jnp.int32)}

            replay = flow.replay(SequenceReplay(capacity=64, length=6, period=2))
            replay.insert(flow.map(steps, flow.rollout(self.act, steps=8)))
            flow.learn(self.learn, replay.sample(4, min_size=64, samples_per_insert=1.0))

    _, progress = run(Ordered(), 12)
    assert progress.updates == (12 * 64 - 64) // 24
    assert progress.out["in_order"] == 1.0
