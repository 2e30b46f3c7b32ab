"""Geometry of the plane: circles, rectangles in any direction, and rays.

Functions broadcast over leading axes, so that one call compares all pairs of bodies: `[A, 1, 2]` with `[B, 2]` gives
`[A, B]`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from runnel.types import Array


class Contact(NamedTuple):
    """Where two bodies touch or overlap."""

    depth: Array  # [...] of the overlap; negative where they are apart
    normal: Array  # [..., 2] unit vector from the first body to the second
    point: Array  # [..., 2] in the world


class Crossing(NamedTuple):
    """The part of a ray inside a rectangle, as shares of the ray's length."""

    hit: Array  # [...] whether there is such a part
    enters: Array  # [...] from 0 to 1 where it hits
    leaves: Array  # [...]


def direction(angle: Array) -> Array:
    """[..., 2] the unit vector at an angle."""
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)


def rotated(vector: Array, angle: Array) -> Array:
    """A vector of a body's frame, in the world's: the body is turned by `angle`."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = vector[..., 0], vector[..., 1]
    return jnp.stack([cos * x - sin * y, sin * x + cos * y], -1)


def unrotated(vector: Array, angle: Array) -> Array:
    """A vector of the world's frame, in that of a body turned by `angle`."""
    return rotated(vector, -angle)


def wrapped(angle: Array) -> Array:
    """The angle between -pi and pi."""
    return (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi


def cross(one: Array, other: Array) -> Array:
    """The third component of the cross product of two vectors of the plane."""
    return one[..., 0] * other[..., 1] - one[..., 1] * other[..., 0]


def length(vector: Array) -> Array:
    """The length of a vector, whose gradient is never needed."""
    return jnp.sqrt((vector * vector).sum(-1))


def shortened(vector: Array, limit: float) -> Array:
    """The vector, no longer than `limit`."""
    return vector * jnp.minimum(1.0, limit / jnp.maximum(length(vector), 1e-9))[..., None]


def corners(centre: Array, angle: Array, half: Array) -> Array:
    """[..., 4, 2] the corners of a rectangle."""
    signs = jnp.array([[1, 1], [1, -1], [-1, -1], [-1, 1]], half.dtype)
    return centre[..., None, :] + rotated(signs * half[..., None, :], angle[..., None])


def distance_to_rectangle(point: Array, centre: Array, angle: Array, half: Array) -> Array:
    """The distance of a point to a rectangle; 0 inside."""
    local = unrotated(point - centre, angle)
    return length(local - jnp.clip(local, -half, half))


def circle_contact(centre: Array, radius: float, other: Array, angle: Array, half: Array) -> Contact:
    """A circle and a rectangle (`other`); a centre inside the rectangle leaves it by the nearest side."""
    local = unrotated(other - centre, angle)  # of the rectangle's centre, seen from the circle, in its frame
    nearest = local + jnp.clip(-local, -half, half)
    gap = length(nearest)
    inside = half - jnp.abs(local)  # distance to the sides
    along_x = inside[..., 0] < inside[..., 1]
    away = jnp.where(local >= 0, 1.0, -1.0)
    out = jnp.stack([jnp.where(along_x, away[..., 0], 0.0), jnp.where(along_x, 0.0, away[..., 1])], -1)
    is_inside = gap < 1e-6
    normal = jnp.where(is_inside[..., None], out, nearest / jnp.maximum(gap, 1e-6)[..., None])
    depth = jnp.where(is_inside, radius + inside.min(-1), radius - gap)
    return Contact(depth, rotated(normal, angle), centre + rotated(nearest, angle))


def rectangle_contact(
    centre: Array, angle: Array, half: Array, other: Array, other_angle: Array, other_half: Array, slop: float = 0.01
) -> Contact:
    """Two rectangles: the axis of least overlap, and the mean of the corners that are inside the other one."""
    offset = other - centre
    axes = [direction(angle), direction(angle + jnp.pi / 2)]
    other_axes = [direction(other_angle), direction(other_angle + jnp.pi / 2)]

    def overlap(axis: Array) -> Array:
        reach = sum(
            size[..., k] * jnp.abs((axis * own[k]).sum(-1)) for own, size in ((axes, half), (other_axes, other_half))
            for k in (0, 1)
        )  # fmt: skip
        return reach - jnp.abs((axis * offset).sum(-1))

    depth, normal = overlap(axes[0]), axes[0]
    for axis in (axes[1], *other_axes):
        less = overlap(axis)
        depth, normal = jnp.minimum(depth, less), jnp.where((less < depth)[..., None], axis, normal)
    normal = normal * jnp.where((normal * offset).sum(-1) < 0, -1.0, 1.0)[..., None]

    def inside(of: Array, of_angle: Array, of_half: Array, to: Array, to_angle: Array, to_half: Array) -> Array:
        """[..., 3] the sum of the corners inside, weighted by how deep they are, and the sum of the weights."""
        points = corners(of, of_angle, of_half)
        local = unrotated(points - to[..., None, :], to_angle[..., None])
        weight = jnp.maximum((to_half[..., None, :] - jnp.abs(local)).min(-1) + slop, 0.0)[..., None]
        return jnp.concatenate([points * weight, weight], -1).sum(-2)

    these = (centre, angle, half)
    those = (other, other_angle, other_half)
    sums = inside(*these, *those) + inside(*those, *these)
    total = sums[..., 2:]
    middle = (centre + other) / 2  # bars that cross have no corner inside
    return Contact(depth, normal, jnp.where(total > 1e-9, sums[..., :2] / jnp.maximum(total, 1e-9), middle))


def crossing(start: Array, end: Array, centre: Array, angle: Array, half: Array) -> Crossing:
    """The part of the ray from `start` to `end` inside a rectangle."""
    origin = unrotated(start - centre, angle)
    path = unrotated(end - start, angle)
    path = jnp.where(jnp.abs(path) < 1e-9, 1e-9, path)
    first, second = (-half - origin) / path, (half - origin) / path
    enters = jnp.clip(jnp.minimum(first, second).max(-1), 0.0, None)
    leaves = jnp.clip(jnp.maximum(first, second).min(-1), None, 1.0)
    return Crossing(enters < leaves, enters, leaves)
