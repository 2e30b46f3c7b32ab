"""What the world makes possible, shown by agents that follow a script: each use of it turns the reward around."""

import jax
import jax.numpy as jnp
import numpy as np
from hide_scenes import IDLE, game, scene, towards

from hide_and_seek.world import HEIGHT, HIDERS, NOBODY

KEY = jax.random.key(0)
ROOM = [(3.0, 0.625, 0.06, 0.625), (3.0, 2.405, 0.06, 0.655), (4.47, 3.0, 1.53, 0.06)]
"""Walls around a room in the corner, with a door in the left one, from y = 1.25 to y = 1.75."""
DOOR = (3.0, 1.5)
BOX = (3.95, 1.5, 0.0)
RAMP = (1.4, 2.3, 0.0)
AFTER = 48  # steps after the preparation
LATE = 10


def play(world, script, **settings):
    """Rewards of the first agent and states of an episode in which `script(state, step)` returns all actions."""
    _, _, begin, step = game(**settings)
    state, _ = begin(world)
    rewards, states = [], [state]
    for number in range(80):
        state, timestep = step(state, jnp.asarray(script(state, number)), KEY)
        rewards.append(float(timestep.reward[0]))
        states.append(state)
    return np.array(rewards), states


class Path:
    """Walks from place to place."""

    def __init__(self, *places):
        self.places = list(places)

    def __call__(self, state, agent, **more):
        here = np.asarray(state.world.agents.position[agent])
        while len(self.places) > 1 and np.linalg.norm(here - self.places[0]) < 0.15:
            self.places.pop(0)
        return towards(state, agent, self.places[0], **more)


def shut(state, agent, step, begins=0):
    """Pulls the box before the door and locks it there."""
    if step < begins:
        return IDLE
    if step < begins + 14:
        return towards(state, agent, (2.0, 1.5), grab=True)
    return towards(state, agent, np.asarray(state.world.agents.position[agent]), look=DOOR, lock=True)


SMALL = dict(hiders=1, seekers=1, boxes=1)


def shelter(is_built):
    environment = game(**SMALL)[0]
    world = scene(environment, [(4.5, 1.5, np.pi), (1.5, 1.5, 0.0)], [BOX], ROOM)
    enters = Path((2.7, 1.5), (3.35, 1.5), (3.4, 2.2), (4.3, 2.4))

    def script(state, step):
        hider = shut(state, 0, step) if is_built else IDLE
        return np.stack([hider, enters(state, 1, look=(4.5, 1.5) if step > 55 else None)])

    return play(world, script, **SMALL)


def test_a_shelter_hides():
    rewards, states = shelter(is_built=True)
    assert states[-1].world.blocks.lock[0] == HIDERS
    assert (rewards[:32] == 0).all()
    assert (rewards[32:] == 1).all()


def test_without_the_shelter_the_seeker_comes_in_and_sees():
    rewards, states = shelter(is_built=False)
    assert states[-1].world.agents.position[1, 0] > 3.1
    assert (rewards[-LATE:] == -1).all()


TEAM = dict(hiders=2, seekers=1, boxes=1)


def siege(locks_ramp, uses_ramp=True):
    """One hider shuts the door behind the other, who may have locked the ramp; the seeker takes it to the wall."""
    environment = game(**TEAM)[0]
    agents = [(4.5, 1.5, np.pi), (1.4, 1.8, np.pi / 2), (0.75, 2.3, 0.0)]
    world = scene(environment, agents, [BOX, RAMP], ROOM)
    returns = Path((2.6, 1.5), (3.4, 1.5), (3.6, 0.6))
    over = Path((3.6, 2.3), (3.9, 2.3))

    def script(state, step):
        if step < 3:
            other = towards(state, 1, (1.4, 1.8), look=(1.4, 2.3), lock=locks_ramp)
        else:
            other = returns(state, 1, lock=locks_ramp and step < 9)
        if step < 32 or not uses_ramp:
            seeker = IDLE
        elif step < 50:
            seeker = towards(state, 2, (3.0, 2.3), grab=True)
        else:
            seeker = over(state, 2, look=(4.5, 1.5) if step > 65 else None)
        return np.stack([shut(state, 0, step, begins=15), other, seeker])

    return play(world, script, **TEAM)


def test_a_ramp_leads_a_seeker_over_the_wall():
    rewards, states = siege(locks_ramp=False)
    heights = np.array([state.world.agents.height[2] for state in states])
    assert heights.max() > 0.8 * HEIGHT
    assert heights[-1] == 0
    assert states[-1].world.agents.position[2, 0] > 3.1
    assert states[-1].world.blocks.lock[0] == HIDERS  # the door is still shut
    assert (rewards[-LATE:] == -1).all()


def test_the_shelter_holds_where_no_agent_uses_the_ramp():
    rewards, _ = siege(locks_ramp=False, uses_ramp=False)
    assert (rewards[32:] == 1).all()


def test_a_locked_ramp_leads_no_seeker_in():
    rewards, states = siege(locks_ramp=True)
    assert states[-1].world.blocks.lock[1] == HIDERS
    assert np.array_equal(states[-1].world.blocks.position[1], states[0].world.blocks.position[1])
    assert states[-1].world.agents.position[2, 0] < 3
    assert (rewards[32:] == 1).all()


def test_an_agent_on_a_box_surfs():
    environment = game(**SMALL)[0]
    world = scene(environment, [(1.0, 4.5, 0.0), None], [(1.0, 4.5, 0.0)])
    world = world._replace(agents=world.agents._replace(height=jnp.array([HEIGHT, 0.0], jnp.float32)))
    _, states = play(world, lambda state, step: np.stack([towards(state, 0, (4.5, 4.5), grab=True), IDLE]), **SMALL)
    heights = np.array([state.world.agents.height[0] for state in states])
    assert (heights == HEIGHT).all()
    assert states[-1].world.blocks.position[0, 0] > 4
    assert np.linalg.norm(states[-1].world.blocks.position[0] - states[-1].world.agents.position[0]) < 0.05


def test_a_raised_agent_sees_over_walls():
    environment, _, begin, _ = game(**SMALL)
    world = scene(environment, [(5.0, 1.5, 0.0), (1.0, 1.5, 0.0)], [], [(3.0, 1.5, 0.06, 1.0)])
    assert not begin(world)[0].sees[1, 0]
    raised = world._replace(agents=world.agents._replace(height=jnp.array([0.0, HEIGHT], jnp.float32)))
    assert begin(raised)[0].sees[1, 0]
    near = world._replace(
        agents=raised.agents._replace(position=world.agents.position.at[0].set(jnp.array([3.25, 1.5])))
    )
    assert not begin(near)[0].sees[1, 0]  # behind the wall, close to it


def test_only_the_team_that_locked_unlocks():
    environment = game(**SMALL)[0]
    world = scene(environment, [(2.5, 3.0, 0.0), (3.5, 3.0, np.pi)], [(3.0, 3.0, 0.0)])
    history = []

    def script(state, step):
        history.append(int(state.world.blocks.lock[0]))
        still = [towards(state, agent, np.asarray(state.world.agents.position[agent]), look=(3.0, 3.0))
                 for agent in (0, 1)]  # fmt: skip
        still[0][4] = step < 60  # the hider locks it, and frees it at step 60
        return np.stack(still)  # the seeker always wants it unlocked

    play(world, script, **SMALL)
    assert set(history[1:61]) == {HIDERS}
    assert set(history[61:]) == {NOBODY}


def test_seekers_lock_too():
    environment = game(**SMALL)[0]
    world = scene(environment, [(5.0, 5.0, 0.0), (3.5, 3.0, np.pi)], [(3.0, 3.0, 0.0)])
    seekers_want = np.array([5, 5, 5, 0, 1])
    _, states = play(world, lambda state, step: np.stack([IDLE, seekers_want]), **SMALL)
    locks = [int(state.world.blocks.lock[0]) for state in states]
    assert set(locks[:33]) == {NOBODY}  # they can do nothing in the preparation
    assert set(locks[33:]) == {1}
