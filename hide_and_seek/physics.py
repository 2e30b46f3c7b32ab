"""One step of the physics: forces, then positions that are corrected until bodies no longer overlap.

Position-based dynamics (Müller et al., 2007): bodies move with their velocity, a fixed number of sweeps pushes
overlapping ones apart in proportion to their inverse masses, and a body's velocity is the way it went. A body moves at
most `TOP_SPEED * STEP_S / SUBSTEPS` = 6 cm between two corrections, which is less than an agent's radius, so nothing
tunnels. All contacts of a sweep are corrected at once, and nothing depends on data but numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from hide_and_seek import geometry
from hide_and_seek.world import (
    AGENT_DAMPING,
    BLOCK_DAMPING,
    CLIMB,
    FALL_SPEED,
    FORCE,
    NOBODY,
    RADIUS,
    REACH,
    SPIN_DAMPING,
    STEP_S,
    SUBSTEPS,
    TOP_SPEED,
    TOP_SPIN,
    TORQUE,
    Agents,
    Blocks,
    World,
    holding,
    obstacles,
    surface,
)
from runnel.types import Array

SWEEPS = 6
AGENT_INERTIA = 0.05
LARGEST_CORRECTION = 0.1  # m, of one body in one sweep
LARGEST_TURN = 0.2  # radians, likewise
GRIP_SLACK = 0.2  # m: a held block that has been kept back further is lost


class Push(NamedTuple):
    """What an agent's action does to it."""

    force: Array  # [A, 2] in the agent's frame, each from -1 to 1
    torque: Array  # [A]


class Weights(NamedTuple):
    """Inverse masses and inertias; 0 of what does not move."""

    agents: Array  # [A]
    agent_spins: Array  # [A]
    blocks: Array  # [O]
    block_spins: Array  # [O]


class Shift(NamedTuple):
    """Corrections of places and angles, summed over contacts."""

    agents: Array  # [A, 2]
    agent_angles: Array  # [A]
    blocks: Array  # [O, 2]
    block_angles: Array  # [O]


def advance(world: World, push: Push) -> World:
    """The world `STEP_S` later."""
    movable = (world.blocks.exists & (world.blocks.lock == NOBODY)).astype(jnp.float32)
    present = world.agents.exists.astype(jnp.float32)
    inertia = (world.blocks.half**2).sum(-1) / 3
    weights = Weights(present, present / AGENT_INERTIA, movable, movable / inertia)
    world = jax.lax.fori_loop(0, SUBSTEPS, lambda _, at: _substep(at, push, weights), world)
    return world._replace(agents=_let_go(world))


def _substep(world: World, push: Push, weights: Weights) -> World:
    seconds = STEP_S / SUBSTEPS
    agents, blocks = world.agents, world.blocks
    force = FORCE * geometry.shortened(push.force, 1.0)
    velocity = agents.velocity + seconds * (geometry.rotated(force, agents.angle) - AGENT_DAMPING * agents.velocity)
    velocity = geometry.shortened(velocity, TOP_SPEED) * weights.agents[:, None]
    spin = agents.spin + seconds * (TORQUE * push.torque - SPIN_DAMPING * agents.spin)
    spin = jnp.clip(spin, -TOP_SPIN, TOP_SPIN) * weights.agents
    block_velocity = (1 - seconds * BLOCK_DAMPING) * blocks.velocity * weights.blocks[:, None]
    block_spin = (1 - seconds * SPIN_DAMPING) * blocks.spin * weights.blocks

    moved = world._replace(
        agents=agents._replace(
            position=agents.position + seconds * velocity, angle=geometry.wrapped(agents.angle + seconds * spin)
        ),
        blocks=blocks._replace(
            position=blocks.position + seconds * block_velocity,
            angle=geometry.wrapped(blocks.angle + seconds * block_spin),
        ),
    )
    moved = jax.lax.fori_loop(0, SWEEPS, lambda _, at: _sweep(at, weights), moved)
    moved = _settled(moved, weights)
    return _with_velocities(world, moved, seconds)


def _with_velocities(before: World, after: World, seconds: float) -> World:
    """Velocities are what was covered; an agent's height follows the ground under it."""
    agents, blocks = after.agents, after.blocks

    def velocity(now: Array, then: Array) -> Array:
        return geometry.shortened((now - then) / seconds, TOP_SPEED)

    def spin(now: Array, then: Array) -> Array:
        return jnp.clip(geometry.wrapped(now - then) / seconds, -TOP_SPIN, TOP_SPIN)

    agents = agents._replace(
        velocity=velocity(agents.position, before.agents.position),
        spin=spin(agents.angle, before.agents.angle),
        height=jnp.maximum(ground(after), agents.height - seconds * FALL_SPEED),
    )
    blocks = blocks._replace(
        velocity=velocity(blocks.position, before.blocks.position), spin=spin(blocks.angle, before.blocks.angle)
    )
    return after._replace(agents=agents, blocks=blocks)


def ground(world: World) -> Array:
    """[A] the height of what is under each agent, and not too high to step onto."""
    agents, things = world.agents, obstacles(world)
    local = geometry.unrotated(agents.position[:, None] - things.centre, things.angle)
    tops = surface(local, things.half, things.is_ramp)
    under = (jnp.abs(local) <= things.half).all(-1) & things.exists & (tops <= agents.height[:, None] + CLIMB)
    return jnp.where(under, tops, 0.0).max(-1)


def _sweep(world: World, weights: Weights) -> World:
    shifts = (_agents_and_obstacles(world, weights), _agents_and_agents(world, weights), _blocks(world, weights))
    total, contacts = jax.tree.map(lambda *x: sum(x), *shifts)
    total = _shared(total, contacts)
    held = _held(world, weights)
    return _shifted(world, jax.tree.map(jnp.add, total, held))


def _shared(total: Shift, contacts: Shift) -> Shift:
    """Of many contacts at once, each counts less: together they would overshoot."""

    def share(sums: Array, count: Array) -> Array:
        share = 1.0 / jnp.maximum(1.0, 0.5 * count)
        return sums * (share[..., None] if sums.ndim > count.ndim else share)

    return jax.tree.map(share, total, contacts)


def _shifted(world: World, shift: Shift) -> World:
    agents, blocks = world.agents, world.blocks
    agents = agents._replace(
        position=agents.position + geometry.shortened(shift.agents, LARGEST_CORRECTION),
        angle=agents.angle + jnp.clip(shift.agent_angles, -LARGEST_TURN, LARGEST_TURN),
    )
    blocks = blocks._replace(
        position=blocks.position + geometry.shortened(shift.blocks, LARGEST_CORRECTION),
        angle=blocks.angle + jnp.clip(shift.block_angles, -LARGEST_TURN, LARGEST_TURN),
    )
    return _inside(world._replace(agents=agents, blocks=blocks))


def _inside(world: World) -> World:
    """Everything within the limits of the world, whatever pushes it."""
    agents, blocks = world.agents, world.blocks
    reach = jnp.abs(geometry.corners(jnp.zeros_like(blocks.position), blocks.angle, blocks.half)).max(-2)
    return world._replace(
        agents=agents._replace(position=jnp.clip(agents.position, world.low + RADIUS, world.high - RADIUS)),
        blocks=blocks._replace(position=jnp.clip(blocks.position, world.low + reach, world.high - reach)),
    )


def _agents_and_obstacles(world: World, weights: Weights) -> tuple[Shift, Shift]:
    contact, touching = _agent_contacts(world)
    count = world.blocks.exists.shape[0]
    arm = contact.point[:, :count] - world.blocks.position
    lever = geometry.cross(arm, contact.normal[:, :count])  # [A, O]
    spare = contact.depth.shape[1] - count
    mass = jnp.pad(weights.blocks, (0, spare))
    turn = jnp.pad(weights.block_spins * lever**2, ((0, 0), (0, spare)))
    along = jnp.where(touching, contact.depth, 0.0) / jnp.maximum(weights.agents[:, None] + mass + turn, 1e-9)
    push = along[..., None] * contact.normal  # [A, O + W, 2]
    ours = along[:, :count]
    shift = Shift(
        -(push.sum(1) * weights.agents[:, None]),
        jnp.zeros_like(world.agents.angle),
        push[:, :count].sum(0) * weights.blocks[:, None],
        (ours * lever).sum(0) * weights.block_spins,
    )
    return shift, _counts(touching.sum(1), touching[:, :count].sum(0))


def _agent_contacts(world: World) -> tuple[geometry.Contact, Array]:
    """[A, O + W] contacts of agents with obstacles, and which of them are: an agent walks over what is low enough."""
    agents, things = world.agents, obstacles(world)
    contact = geometry.circle_contact(agents.position[:, None], RADIUS, things.centre, things.angle, things.half)
    local = geometry.unrotated(contact.point - things.centre, things.angle)
    blocked = surface(local, things.half, things.is_ramp) > agents.height[:, None] + CLIMB
    return contact, (contact.depth > 0) & blocked & things.exists & agents.exists[:, None]


def _agents_and_agents(world: World, weights: Weights) -> tuple[Shift, Shift]:
    agents = world.agents
    offset = agents.position - agents.position[:, None]  # [A, A, 2] from each to the others
    apart = geometry.length(offset)
    other = ~jnp.eye(apart.shape[0], dtype=bool)
    level = jnp.abs(agents.height - agents.height[:, None]) < HEAD
    touching = (apart < 2 * RADIUS) & other & level & agents.exists & agents.exists[:, None]
    along = jnp.where(touching, 2 * RADIUS - apart, 0.0) / jnp.maximum(weights.agents + weights.agents[:, None], 1e-9)
    # Two in one place part along the x axis, the first to the left.
    order = jnp.where(jnp.arange(apart.shape[0]) > jnp.arange(apart.shape[0])[:, None], 1.0, -1.0)
    aside = jnp.stack([order, jnp.zeros_like(order)], -1)
    normal = jnp.where((apart < 1e-6)[..., None], aside, offset / jnp.maximum(apart, 1e-6)[..., None])
    shift = -(along[..., None] * normal).sum(1) * weights.agents[:, None]
    none = jnp.zeros_like(world.blocks.angle)
    return Shift(shift, jnp.zeros_like(agents.angle), jnp.zeros_like(world.blocks.position), none), _counts(
        touching.sum(1), none
    )


HEAD = 0.4  # agents whose heights differ by more pass over each other


def _blocks(world: World, weights: Weights) -> tuple[Shift, Shift]:
    """Blocks among themselves, and blocks and walls. Each pair of blocks is looked at from both sides."""
    blocks, things = world.blocks, obstacles(world)
    contact = _block_contacts(world)
    touching = contact.depth > 0
    count = blocks.exists.shape[0]
    spare = things.exists.shape[0] - count
    lever = geometry.cross(contact.point - blocks.position[:, None], contact.normal)
    other_lever = geometry.cross(contact.point - things.centre, contact.normal)
    inverse = weights.blocks[:, None] + weights.block_spins[:, None] * lever**2
    inverse = inverse + jnp.pad(weights.blocks, (0, spare))
    inverse = inverse + jnp.pad(weights.block_spins, (0, spare)) * other_lever**2
    along = jnp.where(touching, contact.depth, 0.0) / jnp.maximum(inverse, 1e-9)
    shift = Shift(
        jnp.zeros_like(world.agents.position),
        jnp.zeros_like(world.agents.angle),
        -(along[..., None] * contact.normal).sum(1) * weights.blocks[:, None],
        -(along * lever).sum(1) * weights.block_spins,
    )
    return shift, _counts(jnp.zeros_like(world.agents.angle), touching.sum(1))


def _block_contacts(world: World) -> geometry.Contact:
    """[O, O + W] contacts of blocks with obstacles; a depth below 0 where a pair is none."""
    blocks, things = world.blocks, obstacles(world)
    contact = geometry.rectangle_contact(
        blocks.position[:, None], blocks.angle[:, None], blocks.half[:, None], things.centre, things.angle, things.half
    )
    count, total = blocks.exists.shape[0], things.exists.shape[0]
    pair = blocks.exists[:, None] & things.exists & ~jnp.eye(count, total, dtype=bool)
    return contact._replace(depth=jnp.where(pair, contact.depth, -1.0))


def _held(world: World, weights: Weights) -> Shift:
    """Pulls held blocks to where their holders want them, and the holders to the blocks."""
    agents, blocks = world.agents, world.blocks
    holds = holding(agents, blocks.exists.shape[0]) & agents.exists[:, None]  # [A, O]
    goal = agents.position + geometry.rotated(agents.grip, agents.angle)
    short = jnp.where(holds[..., None], goal[:, None] - blocks.position, 0.0)
    pull = short / jnp.maximum(weights.agents[:, None] + weights.blocks, 1e-9)[..., None]
    askew = geometry.wrapped((agents.angle + agents.grip_angle)[:, None] - blocks.angle)
    twist = jnp.where(holds, askew, 0.0) / jnp.maximum(weights.agent_spins[:, None] + weights.block_spins, 1e-9)
    holders = jnp.maximum(1, holds.sum(0))
    return Shift(
        -pull.sum(1) * weights.agents[:, None],
        -twist.sum(1) * weights.agent_spins,
        pull.sum(0) * (weights.blocks / holders)[:, None],
        twist.sum(0) * weights.block_spins / holders,
    )


def _settled(world: World, weights: Weights) -> World:
    """A last correction in which only the lighter side yields: blocks to walls, then agents to blocks and walls."""
    blocks = world.blocks
    count = blocks.exists.shape[0]
    contact = _block_contacts(world)
    still = jnp.concatenate([weights.blocks == 0, jnp.ones(contact.depth.shape[1] - count, bool)])
    depth = jnp.where(still, jnp.maximum(contact.depth, 0.0), 0.0)
    deepest = jnp.argmax(depth, 1, keepdims=True)
    out = jnp.take_along_axis(contact.normal, deepest[..., None], 1) * jnp.take_along_axis(depth, deepest, 1)[..., None]
    position = blocks.position - geometry.shortened(out[:, 0], LARGEST_CORRECTION) * weights.blocks[:, None]
    world = _inside(world._replace(blocks=blocks._replace(position=position)))
    for _ in range(2):  # two: out of a corner
        contact, touching = _agent_contacts(world)
        push = jnp.where(touching, contact.depth, 0.0)[..., None] * contact.normal
        share = 1.0 / jnp.maximum(1.0, 0.5 * touching.sum(1))
        out = geometry.shortened(push.sum(1) * share[:, None], LARGEST_CORRECTION)
        position = world.agents.position - out * weights.agents[:, None]
        world = _inside(world._replace(agents=world.agents._replace(position=position)))
    return world


def _let_go(world: World) -> Agents:
    """Agents lose what has been kept back from them."""
    agents, blocks = world.agents, world.blocks
    goal = agents.position + geometry.rotated(agents.grip, agents.angle)
    away = geometry.length(goal[:, None] - blocks.position)  # [A, O]
    lost = (holding(agents, blocks.exists.shape[0]) & (away > GRIP_SLACK)).any(1)
    return agents._replace(held=jnp.where(lost, NOBODY, agents.held))


def grabbed(world: World, wants: Array, sees: Array) -> Agents:
    """Agents that want to (`wants` [A]) hold the nearest block in view (`sees` [A, O]) and reach; others let go."""
    agents, blocks = world.agents, world.blocks
    distance = jnp.where(sees, reach_of(world), jnp.inf)
    nearest = jnp.argmin(distance, 1)
    able = distance.min(1) <= REACH
    begins = wants & able & (agents.held == NOBODY) & agents.exists
    one_hot = (nearest[:, None] == jnp.arange(blocks.exists.shape[0])).astype(jnp.float32)
    offset = geometry.unrotated(one_hot @ blocks.position - agents.position, agents.angle)
    turned = geometry.wrapped(one_hot @ blocks.angle - agents.angle)
    return agents._replace(
        held=jnp.where(begins, nearest, jnp.where(wants, agents.held, NOBODY)).astype(jnp.int32),
        grip=jnp.where(begins[:, None], offset, agents.grip),
        grip_angle=jnp.where(begins, turned, agents.grip_angle),
    )


def locked(world: World, wants: Array, can: Array, sees: Array) -> Blocks:
    """Blocks in view and reach of agents that `can` [A] act are locked by the first that `wants` [A] it.

    A block stays locked until an agent of the team that locked it, which sees and reaches it, wants it unlocked and no
    such agent wants it locked.
    """
    agents, blocks = world.agents, world.blocks
    near = sees & (reach_of(world) <= REACH) & (agents.exists & can)[:, None]  # [A, O]
    asks = near & wants[:, None]
    first = agents.team[jnp.argmax(asks, 0)]
    own = near & (agents.team[:, None] == blocks.lock)
    freed = own.any(0) & ~(own & wants[:, None]).any(0)
    lock = jnp.where(asks.any(0), first, NOBODY)
    kept = jnp.where(freed, NOBODY, blocks.lock)
    return blocks._replace(lock=jnp.where(blocks.lock == NOBODY, lock, kept).astype(jnp.int32))


def reach_of(world: World) -> Array:
    """[A, O] from the edge of each agent to each block; infinite to one that does not exist."""
    agents, blocks = world.agents, world.blocks
    away = geometry.distance_to_rectangle(agents.position[:, None], blocks.position, blocks.angle, blocks.half)
    return jnp.where(blocks.exists, jnp.maximum(away - RADIUS, 0.0), jnp.inf)


def overlaps(world: World) -> Array:
    """[...] every overlap of two bodies, in metres, and how far any body is outside the world."""
    agents, blocks = world.agents, world.blocks
    contact, touching = _agent_contacts(world)
    apart = geometry.length(agents.position - agents.position[:, None])
    level = jnp.abs(agents.height - agents.height[:, None]) < HEAD
    pairs = level & agents.exists & agents.exists[:, None] & ~jnp.eye(apart.shape[0], dtype=bool)
    edges = geometry.corners(blocks.position, blocks.angle, blocks.half)
    beyond = jnp.maximum(world.low - edges, edges - world.high).max((-1, -2))
    outside = jnp.maximum(world.low - agents.position, agents.position - world.high).max(-1) + RADIUS
    found = (
        jnp.where(touching, contact.depth, 0.0),
        jnp.where(pairs, 2 * RADIUS - apart, 0.0),
        _block_contacts(world).depth,
        jnp.where(blocks.exists, beyond, 0.0),
        jnp.where(agents.exists, outside, 0.0),
    )
    return jnp.maximum(jnp.concatenate([jnp.ravel(each) for each in found]), 0.0)


def _counts(agents: Array, blocks: Array) -> Shift:
    """How many contacts each body has, in the places of the corrections they give rise to."""
    agents, blocks = agents.astype(jnp.float32), blocks.astype(jnp.float32)
    return Shift(agents, agents, blocks, blocks)
