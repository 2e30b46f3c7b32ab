"""Names of the arrays that workers save, load and keep in journals. The only place where they are written or parsed.

A worker's part of a checkpoint is a flat dict from these names to arrays. Names of trees end in the number of a leaf.

| name | array |
|---|---|
| `iteration`, `seed`, `env_steps` | the progress of training, and its random numbers |
| `updates.GROUP`, `states.GROUP.LEAF` | a learner's count of updates and its state |
| `initial.GROUP.LEAF` | the state that a learner begins with, instead of a fresh one |
| `replays.NODE.LEAF`, `inserted.NODE`, `credit.NODE` | a replay buffer, and the counts of its schedule |
| `part.START.NAME` | a part of an array, where learners in several processes hold parts of a replay |
| `window.returns.GROUP`, `window.FIELD` | the newest episodes |
| `block.NUMBER.FIELD` | one block of environments; the functions below name its fields |

A journal uses the names of block 0, whatever the block's number: see `journal_field` and `in_block`.
"""

from __future__ import annotations

from typing import Final

ITERATION: Final = "iteration"
SEED: Final = "seed"
ENV_STEPS: Final = "env_steps"
UNROLLS: Final = "unrolls"
"""The number of unrolls that the block has completed; in journals only."""


def leaf(tree: str, number: int) -> str:
    """Leaf `number` of a named tree, in JAX's order."""
    return f"{tree}.{number}"


# Learning


def updates(group: str) -> str:
    return f"updates.{group}"


def state(group: str) -> str:
    """The tree of a learner's state."""
    return f"states.{group}"


_INITIAL: Final = "initial."


def initial(group: str) -> str:
    """The tree of the state that a learner begins with."""
    return f"{_INITIAL}{group}"


def is_initial(name: str) -> bool:
    return name.startswith(_INITIAL)


def replay(node: str) -> str:
    """The tree of a replay buffer."""
    return f"replays.{node}"


_PART: Final = "part."


def part(name: str, start: int) -> str:
    """A part of an array that several workers hold, which begins at `start` of the axis that they share."""
    return f"{_PART}{start}.{name}"


def part_of(name: str) -> tuple[str, int] | None:
    """The array that this is a part of, and the part's first index; None if it is no part."""
    if not name.startswith(_PART):
        return None
    _, start, whole = name.split(".", 2)
    return whole, int(start)


def inserted(node: str) -> str:
    return f"inserted.{node}"


def credit(node: str) -> str:
    return f"credit.{node}"


WINDOW_FIELDS: Final = ("lengths", "cursor", "filled")
"""Fields of the window that all groups share."""


def window(field: str) -> str:
    """One of `WINDOW_FIELDS`."""
    return f"window.{field}"


def window_returns(group: str) -> str:
    return f"window.returns.{group}"


# Fields of a block

LENGTH: Final = "length"
"""[E] steps of the episodes in progress."""
FIRST: Final = "first"
"""[E] whether the next observation begins an episode; JAX environments only."""
ENVIRONMENT: Final = "environment"
"""The tree of JAX environments' state."""


def reward(group: str) -> str:
    """[E] rewards of the episodes in progress."""
    return f"reward.{group}"


def discounted(group: str) -> str:
    """[B] discounted rewards of the episodes in progress."""
    return f"discounted.{group}"


def memory(group: str) -> str:
    """The tree of the agents' recurrent memory."""
    return f"memory.{group}"


def observation(group: str) -> str:
    """The tree of the next observation; JAX environments only."""
    return f"observation.{group}"


_HOST: Final = "host."


def host(name: str) -> str:
    """An array of the packed episodes of host environments: see `action_history.pack`."""
    return f"{_HOST}{name}"


_BLOCK: Final = "block."


def block(number: int, field: str) -> str:
    """A field of one block of environments."""
    return f"{_BLOCK}{number}.{field}"


def journal_field(field: str) -> str:
    """A field of a block in the block's own journal."""
    return block(0, field)


# Parsing


def in_block(name: str, number: int) -> str:
    """Converts a journal's name to that of block `number` in a checkpoint; other names stay."""
    field = name.removeprefix(journal_field(""))
    return name if field == name else block(number, field)


def block_number(name: str) -> int | None:
    """The number of the block that an array belongs to; None for others."""
    return int(name.split(".", 2)[1]) if name.startswith(_BLOCK) else None


def host_name(name: str) -> str | None:
    """The `name` of an array that `block(number, host(name))` names; None for others."""
    if not name.startswith(_BLOCK):
        return None
    field = name.split(".", 2)[2]
    return field.removeprefix(_HOST) if field.startswith(_HOST) else None


def replay_node(name: str) -> str | None:
    """The replay node whose buffer an array is part of; None for others."""
    kind, _, rest = name.partition(".")
    return rest.rpartition(".")[0] if kind == "replays" else None


def counts_updates(name: str) -> bool:
    """Whether `updates(group)` names this array, for any group."""
    return name.startswith(updates(""))
