"""Random openings of a game: a deal, and the first moves that all players make, drawn from the legal ones."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from runnel.environment import Environment
from runnel.errors import UserError
from runnel.evaluation.match_play import Games, make_table
from runnel.evaluation.seating import A, Hand, Seating, random_player

TRIES: Final = 16
"""The number of openings that are drawn for each that is needed, since some end the game or are duplicates."""


class Openings(NamedTuple):
    """N different openings."""

    deal: np.ndarray  # [N] uint32
    moves: dict[str, np.ndarray]  # by group: [N, M, n, ...]


def draw_openings(environment: Environment, count: int, moves: int, seed: int, symmetric: bool) -> Openings:
    """Draws up to `count` openings of `moves` moves, no two of which look the same to the players.

    Openings that end the game are left out. There are fewer than `count` if the game has too few.
    """
    spec = environment.spec
    hands = [Hand(A, group, 0, agents.agents, random_player(agents)) for group, agents in spec.groups.items()]
    table = make_table(environment, Seating(spec, hands, rotates=symmetric), seed)
    batch = min(table.most, max(16, 2 * count)) if table.adjustable else table.most
    seen: set[bytes] = set()
    deals: list[int] = []
    taken: list[dict[str, np.ndarray]] = []
    for start in range(0, TRIES * max(count, batch), batch):
        deal = np.arange(start, start + batch, dtype=np.uint32)
        drawn = table.draw(Games(deal, np.zeros(batch, np.int32), np.zeros(batch, np.uint32), {}), moves)
        for row, shown in enumerate(drawn.shown):
            if not drawn.over[row] and shown not in seen and len(deals) < count:
                seen.add(shown)
                deals.append(start + row)
                taken.append({group: made[row] for group, made in drawn.moves.items()})
        if len(deals) == count:
            break
    if not deals:
        raise UserError(
            f"opening_moves={moves}: every game of {spec.name} ended within {moves} random moves; expected fewer, "
            "or no openings",
            keywords=("opening_moves",),
        )
    return Openings(
        np.array(deals, np.uint32), {group: np.stack([made[group] for made in taken]) for group in spec.groups}
    )
