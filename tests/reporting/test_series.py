"""Metrics as columns: complete while few, thinned out when many, right while the file grows, is cut or is hostile."""

import json
from pathlib import Path

import pytest

from runnel.recording.metrics import MetricsLog
from runnel.reporting.series import Series, glance, newest


def lines(*records: dict) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def add(path: Path, content: bytes) -> None:
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(content)


def test_a_file_is_read_on_from_where_the_last_look_ended(tmp_path):
    series = Series(tmp_path)
    series.read()
    assert series.json(10) == {"steps": [], "columns": {}, "returns": []}
    add(tmp_path, lines({"env_steps": 1, "mean_return": 2.0, "curve": [[0, 1.0]]}) + b'{"env_steps": 2, "mean_re')
    series.read()
    assert series.json(10)["steps"] == [1]
    add(tmp_path, b'turn": 3.0, "learn/loss": 0.5}\n')
    series.read()
    assert series.json(10) == {
        "steps": [1, 2],
        "columns": {"env_steps": [1, 2], "mean_return": [2, 3], "learn/loss": [None, 0.5]},
        "returns": [[0, 1], [1, 2], [2, 3]],
    }
    assert series.last["learn/loss"] == 0.5


def test_a_run_that_goes_back_is_read_again(tmp_path):
    with MetricsLog(tmp_path, clock=iter(range(0, 10_000, 10)).__next__) as log:
        for step in range(100, 500, 100):
            log.write({"env_steps": step, "mean_return": float(step)})
        series = Series(tmp_path)
        series.read()
        assert series.json(10)["steps"] == [100, 200, 300, 400]
        log.rewind(200)
        for step in (250, 300, 350, 400, 450):
            log.write({"env_steps": step, "mean_return": -float(step)})
    series.read()
    found = series.json(100)
    assert found["steps"] == [100, 200, 250, 300, 350, 400, 450]
    assert found["columns"]["mean_return"][2:] == [-250, -300, -350, -400, -450]


def test_memory_stays_bounded_and_both_ends_are_kept(tmp_path):
    add(tmp_path, lines(*({"env_steps": i, "x": float(i), **({"late": 1.0} if i > 4000 else {})} for i in range(5000))))
    series = Series(tmp_path, most_rows=64)
    while series.seen < 5000:
        series.read(most_bytes=10_000)
    assert 32 <= len(series.steps) <= 64
    assert all(len(column) == len(series.steps) for column in series.columns.values())
    found = series.json(16)
    assert len(found["steps"]) == 16
    assert found["steps"] == found["columns"]["x"]
    assert (found["steps"][0], found["columns"]["late"][0], found["columns"]["late"][-1]) == (0, None, 1)
    assert found["steps"][-1] > 4800
    assert series.last["env_steps"] == 4999


def test_a_spike_of_one_line_stays_however_many_lines_there_are(tmp_path):
    values = [0.5] * 5000
    values[1234], values[3777] = 90.0, -70.0
    records = ({"env_steps": i, "x": v, "mean_return": v, "wall_seconds": i / 10} for i, v in enumerate(values))
    add(tmp_path, lines(*records))
    series = Series(tmp_path, most_rows=64)
    series.read()
    for most in (8, 16, 60, 400):
        found = series.json(most)
        shown = found["columns"]["x"]
        assert len(shown) == len(found["steps"]) <= max(most, 8)
        assert [value for value in shown if value not in (0.5, None)] == [90, -70]
        assert found["steps"] == sorted(found["steps"])
        assert found["columns"]["wall_seconds"] == pytest.approx([steps / 10 for steps in found["steps"]])
        returns = found["returns"]
        assert len(returns) <= most
        assert [1234, 90] in returns
        assert [3777, -70] in returns
        assert (returns[0], returns[-1]) == ([0, 0.5], [4999, 0.5])


def test_a_metric_that_only_some_lines_have_is_not_invented_for_others(tmp_path):
    add(tmp_path, lines(*({"env_steps": i, **({"x": float(i)} if i % 100 == 7 else {})} for i in range(1000))))
    series = Series(tmp_path, most_rows=64)
    series.read()
    assert [value for value in series.json(400)["columns"]["x"] if value is not None] == [
        100 * k + 7 for k in range(10)
    ]


def test_the_newest_line_of_a_long_file_is_read_from_its_end(tmp_path):
    assert newest(tmp_path) == {}
    add(tmp_path, lines(*({"env_steps": i, "pad": "x" * 200} for i in range(2000))) + b'{"env_steps": 99999')
    assert newest(tmp_path)["env_steps"] == 1999


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000, b'{"env_steps": 1e400, "x": 1}', b'{"env_steps": NaN}', b'{"env_steps": true}',
        b"7", b"\xff\xfe",
        b'{"env_steps": ' + b"9" * 5000 + b"}", b'{"env_steps": {"a": 1}}',
    ],
)  # fmt: skip
def test_lines_that_no_run_writes_are_left_out(line, tmp_path):
    add(tmp_path, line + b"\n" + lines({"env_steps": 5, "x": 10**300, "y": [1], "z": 2, "n" * 500: 1}))
    series = Series(tmp_path)
    series.read()
    assert series.json(10) == {"steps": [5], "columns": {"env_steps": [5], "z": [2]}, "returns": []}
    assert glance(tmp_path).last["z"] == 2


def test_a_link_is_not_followed_and_an_endless_line_is_no_line(tmp_path):
    (tmp_path / "secret").write_bytes(lines({"env_steps": 1}))
    (tmp_path / "metrics.jsonl").symlink_to("secret")
    with pytest.raises(OSError, match="a link"):
        Series(tmp_path).read()
    (tmp_path / "metrics.jsonl").unlink()
    add(tmp_path, b" " * (2 << 20))
    with pytest.raises(OSError, match="a line of more than"):
        Series(tmp_path).read()


def test_a_glance_at_a_long_file_reads_a_little_of_it_and_the_end(tmp_path):
    pad = {f"learn/{i}": 0.123456 for i in range(40)}
    add(tmp_path, lines(*({"env_steps": i, "mean_return": i / 2, **pad} for i in range(3000))))
    seen = glance(tmp_path)
    assert seen.last["env_steps"] == 2999
    assert seen.returns[0] == (0, 0)
    assert seen.returns[-1] == (2999, 1499.5)
    assert 20 <= len(seen.returns) <= 64
    assert sorted(seen.returns) == seen.returns
