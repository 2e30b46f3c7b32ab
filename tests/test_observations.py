"""Observations that carry more than what is seen."""

import numpy as np
import pytest
from toys import Drift, Tag

from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.observations import View, parted, view
from runnel.types import Box, zeros

SEEN = Box((3,))
MASK = Box((2,), np.dtype(np.bool_), 0, 1)


def test_parts_are_found_again_in_spaces_and_in_values():
    space = parted(SEEN, action_mask=MASK, state=Box((5,)))
    assert view(space) == View(SEEN, MASK, None, space["state"])
    values = zeros(space, 4)
    assert view(values).seen.shape == (4, 3)
    assert view(values).state.shape == (4, 5)


def test_without_more_than_what_is_seen_nothing_changes():
    assert parted(SEEN) is SEEN
    assert view(SEEN) == View(SEEN)


@pytest.mark.parametrize(
    "names", [("observation", "achieved_goal"), ("observation",), ("state",), ("observation", "state", "more")]
)
def test_other_dicts_are_what_the_agent_sees(names):
    space = dict.fromkeys(names, SEEN)
    assert view(space) == View(space)


def test_a_loop_knows_what_a_group_sees_and_does():
    specs = {}

    class Curious(Drift):
        def loop(self, flow):
            with pytest.raises(UserError, match=r"flow.spec is that of one group; take one of hunter, runners"):
                flow.spec  # noqa: B018
            specs.update({group: flow.agents(group).spec for group in flow.groups})
            super().loop(flow)

    trace(Curious(), Tag.spec, 2)
    assert specs == Tag.spec.groups
