"""Every header comes out of a stream as it went in, and a header that cannot be right is refused."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.runtime.workers.stream_headers import (
    StepHeader,
    StreamHeader,
    UnrollHeader,
    ValueHeader,
    last_step,
    last_unroll,
)
from runnel.transport import in_process
from runnel.transport.stream import Field

counts = st.integers(0, 2**63 - 1)
headers = st.one_of(
    st.builds(UnrollHeader, counts, counts), st.builds(StepHeader, counts), st.builds(ValueHeader, counts, counts)
)


@given(st.lists(headers, min_size=1, max_size=5))
def test_a_header_comes_out_of_a_stream_as_it_went_in(sent):
    bell = in_process.InProcessBell()
    context = WorkerContext("actor", bell, None)
    stream = in_process.create((Field((1,), "<f4"),), 2)
    out, port = OutPort(context, stream.writer(bell, bell), "out"), InPort(context, stream.reader(bell, bell), "in")
    for header in sent:
        out.send(header, [0.0])
        message = port.receive()
        assert type(header).unpack(message.header) == header
        port.release(message)
    replacement = OutPort(context, stream.writer(bell, bell), "out")
    assert replacement.last_header == sent[-1].pack()


@pytest.mark.parametrize("kind", get_args(StreamHeader))
def test_a_negative_count_is_refused(kind):
    fields = dict.fromkeys(kind._fields, 0)
    assert kind.unpack(kind(**fields).pack()) == kind(**fields)
    for field in fields:
        with pytest.raises(ValueError, match=f"found {kind.__name__}.*{field}=-1.*0 or more"):
            kind(**{**fields, field: -1}).pack()


@given(counts, counts.filter(bool))
def test_the_header_of_another_kind_of_stream_is_no_step(first, second):
    with pytest.raises(ValueError, match="request or a reply"):
        StepHeader.unpack((first, second))


@pytest.mark.parametrize("batches_left", [0, 1, 3])
def test_a_value_without_batches_is_none(batches_left):
    assert ValueHeader(batches_left, 5).has_value == (batches_left > 0)


@given(counts)
def test_a_replacement_knows_what_was_sent_last(count):
    assert last_unroll(UnrollHeader(count, 3).pack()) == count
    assert last_step(StepHeader(count).pack()) == count
    assert last_unroll(None) == last_step(None) == -1
