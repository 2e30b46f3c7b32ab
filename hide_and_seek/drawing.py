"""A game from above, as a picture: floor, views, blocks and agents, and a line with what is going on.

The floor fills the picture; where it has no walls around it, a margin shows whatever has left it. Views are lit: what
an agent sees is drawn ray by ray, so that shelters throw shadows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hide_and_seek.rooms import FLOOR
from hide_and_seek.senses import CONE
from hide_and_seek.world import CLIMB, EYES, HEIGHT, HIDERS, NOBODY, RADIUS, World

SIDE: Final = 480  # pixels of the map
BAR: Final = 40  # pixels of the line below
SMOOTH: Final = 2  # drawn larger by so much, then averaged
VIEW_RAYS: Final = 72
VIEW_RANGE: Final = 20.0

GROUND: Final = (226, 232, 236)
FLOOR_COLOUR: Final = (247, 248, 246)
GRID: Final = (236, 239, 239)
WALL_COLOUR: Final = (74, 85, 104)
BOX_COLOUR: Final = (240, 190, 82)
RAMP_COLOURS: Final = ((250, 224, 170), (201, 132, 52))
EDGE: Final = (120, 82, 30)
TEAM_COLOURS: Final = ((38, 122, 214), (216, 62, 62))
TEXT: Final = (45, 55, 72)


def draw(game: Any, state: Any) -> np.ndarray:
    """uint8 [SIDE + BAR, SIDE, 3]; `state` of `game` in NumPy arrays."""
    world = state.world
    view = _View(world)
    picture = Image.new("RGB", (SIDE * SMOOTH, (SIDE + BAR) * SMOOTH), GROUND)
    pen = ImageDraw.Draw(picture)
    pen.rectangle([*view.at((0, FLOOR)), *view.at((FLOOR, 0))], fill=FLOOR_COLOUR)
    for line in np.arange(0, FLOOR + 0.5, 1.0):
        pen.line([view.at((line, 0)), view.at((line, FLOOR))], fill=GRID, width=SMOOTH)
        pen.line([view.at((0, line)), view.at((FLOOR, line))], fill=GRID, width=SMOOTH)
    picture = _lit(picture, view, world)
    pen = ImageDraw.Draw(picture)
    for centre, half in zip(world.walls.centre[world.walls.exists], world.walls.half[world.walls.exists], strict=True):
        pen.polygon(view.rectangle(centre, 0.0, half), fill=WALL_COLOUR)
    if world.walled:
        pen.rectangle([*view.at((0, FLOOR)), *view.at((FLOOR, 0))], outline=WALL_COLOUR, width=5 * SMOOTH)
    for number in np.flatnonzero(world.blocks.exists).tolist():
        _block(pen, view, world, number)
    _sightings(pen, view, game, state)
    for number in np.argsort(world.agents.height).tolist():
        if world.agents.exists[number]:
            _agent(pen, view, world, number)
    _bar(pen, game, state)
    return np.asarray(picture.resize((SIDE, SIDE + BAR), Image.Resampling.BOX))


class _View:
    """From metres to pixels."""

    def __init__(self, world: World):
        margin = 0.1
        if not world.walled:
            bodies = (world.agents, world.blocks)
            places = np.concatenate([body.position[body.exists] for body in bodies])
            margin = max(1.0, 0.5 - places.min(), 0.5 + places.max() - FLOOR)
        self._low = -margin
        self.scale = SIDE * SMOOTH / (FLOOR + 2 * margin)

    def at(self, point: Any) -> tuple[float, float]:
        x, y = (float(value) - self._low for value in point)
        return x * self.scale, SIDE * SMOOTH - y * self.scale

    def rectangle(self, centre: Any, angle: float, half: Any) -> list[tuple[float, float]]:
        cos, sin = np.cos(angle), np.sin(angle)
        turn = np.array([[cos, -sin], [sin, cos]])
        signs = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]])
        return [self.at(point) for point in np.asarray(centre) + (signs * half) @ turn.T]


def _lit(picture: Image.Image, view: _View, world: World) -> Image.Image:
    """The floor with what each agent sees of it in its team's colour."""
    for number in np.flatnonzero(world.agents.exists).tolist():
        angles = world.agents.angle[number] + np.linspace(-CONE / 2, CONE / 2, VIEW_RAYS)
        ends = [_seen_up_to(world, number, angle) for angle in angles]
        layer = Image.new("RGBA", picture.size, (0, 0, 0, 0))
        outline = [view.at(point) for point in (world.agents.position[number], *ends)]
        colour = TEAM_COLOURS[world.agents.team[number]]
        ImageDraw.Draw(layer).polygon(outline, fill=(*colour, 30))
        picture = Image.alpha_composite(picture.convert("RGBA"), layer).convert("RGB")
    return picture


def _seen_up_to(world: World, number: int, angle: float) -> np.ndarray:
    """Where a ray of an agent's view ends on the ground."""
    start, step = world.agents.position[number].astype(float), np.array([np.cos(angle), np.sin(angle)])
    far = VIEW_RANGE
    if world.walled:
        with np.errstate(divide="ignore"):
            sides = np.where(step > 0, FLOOR - start, -start) / np.where(step == 0, np.inf, step)
        far = min(far, float(np.min(np.where(step == 0, np.inf, sides))))
    if world.agents.height[number] + EYES > HEIGHT:  # it looks over everything
        return start + far * step
    blocks, walls = world.blocks, world.walls
    shapes = [(blocks.position[i], blocks.angle[i], blocks.half[i]) for i in np.flatnonzero(blocks.exists)]
    shapes += [(walls.centre[i], 0.0, walls.half[i]) for i in np.flatnonzero(walls.exists)]
    for centre, turned, half in shapes:
        cos, sin = np.cos(turned), np.sin(turned)
        turn = np.array([[cos, sin], [-sin, cos]])
        origin, along = turn @ (start - centre), turn @ step
        along = np.where(np.abs(along) < 1e-9, 1e-9, along)
        near, distant = (-half - origin) / along, (half - origin) / along
        enters, leaves = np.minimum(near, distant).max(), np.maximum(near, distant).min()
        if 0 < enters < leaves:
            far = min(far, enters)
    return start + far * step


def _block(pen: ImageDraw.ImageDraw, view: _View, world: World, number: int) -> None:
    blocks = world.blocks
    centre, angle, half = blocks.position[number], float(blocks.angle[number]), blocks.half[number]
    lock = int(blocks.lock[number])
    if blocks.is_ramp[number]:
        steps = 16
        for step in range(steps):
            share = (step + 0.5) / steps
            low, high = (np.array(colour) for colour in RAMP_COLOURS)
            colour = tuple(int(value) for value in low + share * (high - low))
            ahead = np.array([np.cos(angle), np.sin(angle)]) * half[0] * (2 * share - 1)
            pen.polygon(view.rectangle(centre + ahead, angle, (half[0] / steps * 1.1, half[1])), fill=colour)
    else:
        pen.polygon(view.rectangle(centre, angle, half), fill=BOX_COLOUR)
    edge = EDGE if lock == NOBODY else TEAM_COLOURS[lock]
    width = SMOOTH * (1 if lock == NOBODY else 4)
    corners = view.rectangle(centre, angle, half)
    pen.line([*corners, corners[0], corners[1]], fill=edge, width=width, joint="curve")
    if lock != NOBODY:
        _padlock(pen, view, centre, TEAM_COLOURS[lock])


def _padlock(pen: ImageDraw.ImageDraw, view: _View, centre: Any, colour: tuple[int, int, int]) -> None:
    x, y = view.at(centre)
    size = max(4.0 * SMOOTH, 0.08 * view.scale)
    pen.arc([x - 0.6 * size, y - 1.4 * size, x + 0.6 * size, y + 0.4 * size], 180, 360, fill=colour, width=2 * SMOOTH)
    pen.rounded_rectangle([x - size, y - 0.5 * size, x + size, y + size], 0.2 * size, fill=colour)


def _sightings(pen: ImageDraw.ImageDraw, view: _View, game: Any, state: Any) -> None:
    """A line from each seeker to each hider that it sees, and from each agent to what it holds."""
    agents, blocks = state.world.agents, state.world.blocks
    for viewer in np.flatnonzero(agents.exists):
        for other in range(game.agents):
            if agents.team[viewer] != HIDERS and agents.team[other] == HIDERS and state.sees[viewer, other]:
                line = [view.at(agents.position[viewer]), view.at(agents.position[other])]
                pen.line(line, fill=TEAM_COLOURS[1], width=2 * SMOOTH)
        if agents.held[viewer] != NOBODY:
            line = [view.at(agents.position[viewer]), view.at(blocks.position[agents.held[viewer]])]
            pen.line(line, fill=EDGE, width=3 * SMOOTH)


def _agent(pen: ImageDraw.ImageDraw, view: _View, world: World, number: int) -> None:
    agents = world.agents
    x, y = view.at(agents.position[number])
    raised = float(agents.height[number])
    radius = RADIUS * view.scale * (1 + 0.3 * raised / HEIGHT)  # nearer to who looks from above
    colour = TEAM_COLOURS[agents.team[number]]
    if raised > CLIMB:
        shadow = 0.25 * radius
        box = [x - radius + shadow, y - radius + shadow, x + radius + shadow, y + radius + shadow]
        pen.ellipse(box, fill=(150, 150, 150))
    pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=colour, outline=(255, 255, 255), width=SMOOTH)
    for side in (-0.45, 0.45):
        turned = agents.angle[number] + side
        eye_x, eye_y = x + 0.62 * radius * np.cos(turned), y - 0.62 * radius * np.sin(turned)
        white, pupil = 0.26 * radius, 0.13 * radius
        pen.ellipse([eye_x - white, eye_y - white, eye_x + white, eye_y + white], fill=(255, 255, 255))
        pen.ellipse([eye_x - pupil, eye_y - pupil, eye_x + pupil, eye_y + pupil], fill=(20, 20, 30))


def _bar(pen: ImageDraw.ImageDraw, game: Any, state: Any) -> None:
    """What is going on, and how far the episode is."""
    top, wide, high = SIDE * SMOOTH, SIDE * SMOOTH, BAR * SMOOTH
    clock, hiding = int(state.clock), game.team == HIDERS
    seen = bool(state.sees[: game.agents, : game.agents][~hiding][:, hiding].any())
    preparing = clock < game.preparation
    text, colour = ("hiders prepare", TEAM_COLOURS[0]) if preparing else ("hidden", TEAM_COLOURS[0])
    if seen and not preparing:
        text, colour = "seen", TEAM_COLOURS[1]
    pen.rectangle([0, top, wide, top + high], fill=(255, 255, 255))
    pen.rectangle([0, top, wide * min(1.0, clock / game.horizon), top + 4 * SMOOTH], fill=colour)
    mark = wide * game.preparation / game.horizon
    pen.rectangle([mark - SMOOTH, top, mark + SMOOTH, top + 8 * SMOOTH], fill=TEXT)
    font = ImageFont.load_default(15 * SMOOTH)
    pen.text((12 * SMOOTH, top + 14 * SMOOTH), text, fill=colour, font=font)
    score = float(state.tally.hider_return)
    rest = f"step {clock} of {game.horizon}    hiders {score:+.0f}"
    pen.text((wide - 12 * SMOOTH, top + 14 * SMOOTH), rest, fill=TEXT, font=font, anchor="ra")
