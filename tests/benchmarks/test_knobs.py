"""The commands of the benchmark of knobs are understood, and the two of a knob differ."""

import pytest

from benchmarks.knobs import KNOBS
from runnel.cli import arguments


@pytest.mark.parametrize("knob", KNOBS)
def test_both_commands_of_a_knob_are_understood(knob):
    without, having = (arguments.parse(command.split()) for command in KNOBS[knob])
    assert without.command == having.command == "train"
    assert vars(without) != vars(having)
