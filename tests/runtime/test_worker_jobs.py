"""A worker's job as JSON, and the descriptors that travel beside it."""

import json

import pytest

from runnel.errors import MalformedMessage
from runnel.planning.rotation import Rotation
from runnel.runtime.worker_jobs import (
    BlockJob,
    BuildJob,
    EnvironmentChoice,
    EnvJob,
    GroupJob,
    PeersJob,
    RunJob,
    StoreJob,
    StreamJob,
    WorkerDescriptors,
    WorkerJob,
    parse_run_job,
    parse_worker_job,
)
from runnel.transport.stream import Field

WORLD = EnvironmentChoice("gymnasium/CartPole-v1", {"max_steps": 5})
SCHEMA = (Field((2, 3), "<f4"), Field((), "|b1"))
RUN = RunJob(
    BuildJob({"name": "a"}, WORLD, {"name": "d"}, 8, ("red",), "bf16", ({"cpus": 2},)), 3, False, (100,), (100,)
)
STREAM = StreamJob("a -> b: unroll", "unroll", "a", "b", "agent", 0, Rotation(1, 2), Rotation(0, 1), 4, SCHEMA)
ENV = EnvJob(
    WORLD, 5, True, {"agent": 1, "other": None}, ("agent",), {"agent": 0.9, "other": None}, (BlockJob(0, 0, 4),),
    {"agent": GroupJob(Field((), "<i4"), SCHEMA, (), "<f4")},
)  # fmt: skip
JOB = WorkerJob(
    "a", RUN, 0.5, "t:T", ("b", "c"), (STREAM,), (StoreJob("agent", SCHEMA),), PeersJob("x:1", 2, 1, 1), ENV
)


@pytest.mark.parametrize(("job", "read"), [(JOB, parse_worker_job), (RUN, parse_run_job)])
def test_a_job_is_read_as_it_was_written(job, read):
    found = read(json.loads(json.dumps(job.to_json())))
    assert found == job
    if job is JOB:
        assert isinstance(found.streams[0].schema[0], Field)  # a tuple that is not one would be equal, too


def test_a_job_is_checked_when_it_is_read():
    wrong = JOB.to_json()
    wrong["streams"][0]["slots"] = "4"
    with pytest.raises(MalformedMessage, match="'streams', field 'slots': found '4', expected int"):
        parse_worker_job(wrong)
    short = JOB.to_json()
    short["stores"][0]["schema"][0] = [[2, 3]]
    with pytest.raises(MalformedMessage, match="field 'schema': found"):
        parse_worker_job(short)
    with pytest.raises(MalformedMessage, match="found a message of type 'run_job', expected one of worker_job"):
        parse_worker_job(RUN.to_json())


def test_descriptors_are_split_in_the_order_in_which_they_were_passed():
    given = WorkerDescriptors((1, 2), ((3, 4), (5, 6)), (7,), (8,), 9)
    assert given.flat() == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert WorkerDescriptors.of(JOB, given.flat()) == given


@pytest.mark.parametrize("count", [8, 10])
def test_another_number_of_descriptors_is_refused(count):
    with pytest.raises(MalformedMessage, match=f"found {count} descriptors for 'a', expected 9"):
        WorkerDescriptors.of(JOB, range(count))
