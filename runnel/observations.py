"""Parts of an observation besides what the agent sees: legal actions, whether the agent acts, the state.

An observation (or its space, which is the same tree) is *parted* if it is a dict with `observation` and one or more of
the names below, and nothing else. PettingZoo uses `observation` and `action_mask`. Any other observation is seen by the
agent as a whole.

| name | of one agent | used by |
|---|---|---|
| `observation` | any tree | the policy |
| `action_mask` | `[n]` bool: the legal actions, one or more; of a `MultiDiscrete`, element by element | the policy |
| `active` | `[]` bool: the agent is present and has a turn; otherwise its action is ignored | the loss |
| `state` | `[s]`: the whole environment's, the same for every agent | the value, while learning |

An agent that has died, has not yet entered or has no turn is not active. Its observation may be anything (adapters
write zeros where there is none), its mask allows everything, and its rewards still count in its return. Its action in
such a step was not a choice, and is left out of the policy's loss.
"""

from __future__ import annotations

from typing import Any, NamedTuple

PARTS = ("action_mask", "active", "state")
"""The parts that a parted observation may have besides `observation`."""


class View(NamedTuple):
    """The parts of an observation, or of its space; None for a missing part."""

    seen: Any
    action_mask: Any = None
    active: Any = None
    state: Any = None


def view(observation: Any) -> View:
    """An observation in its parts."""
    if not is_parted(observation):
        return View(observation)
    return View(observation["observation"], *(observation.get(part) for part in PARTS))


def is_parted(observation: Any) -> bool:
    """Whether an observation carries more than what the agent sees."""
    return (
        isinstance(observation, dict)
        and "observation" in observation
        and any(part in observation for part in PARTS)
        and observation.keys() <= {"observation", *PARTS}
    )


def parted(seen: Any, action_mask: Any = None, active: Any = None, state: Any = None) -> Any:
    """The observation (or space) with these parts: the inverse of `view`."""
    parts = {"action_mask": action_mask, "active": active, "state": state}
    given = {name: part for name, part in parts.items() if part is not None}
    return {"observation": seen, **given} if given else seen
