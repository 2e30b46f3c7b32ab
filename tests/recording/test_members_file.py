"""`members.json` as training writes it, and edited."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runnel.config.run_config import FORMAT, MOST_MEMBERS
from runnel.errors import UserError
from runnel.recording import member_checkpoints, members_file
from runnel.recording.members_file import Member

MEMBERS = [Member("member-0", 4, {}), Member("member-1", 5, {"learning_rate": 1e-3})]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    members_file.write(tmp_path, MEMBERS)
    return tmp_path


def listed(*members: Any, **more: Any) -> str:
    return json.dumps({"format": FORMAT, "members": members, **more})


def one(**changes: Any) -> dict[str, Any]:
    return {**Member("member-0", 0, {})._asdict(), **changes}


def test_members_are_read_as_they_were_written(directory: Path) -> None:
    assert members_file.read(directory) == MEMBERS
    assert members_file.holds_members(directory)
    assert member_checkpoints.directory_of(directory, 1) == directory / "member-1"


@pytest.mark.parametrize(("index", "members", "name"), [(0, 1, "member-0"), (3, 16, "member-03"), (9, 10, "member-9")])
def test_members_sort_by_their_names(index: int, members: int, name: str) -> None:
    assert members_file.name_of(index, members) == name


@pytest.mark.parametrize("member", [-1, 2, 10**9])
def test_a_number_that_no_member_has_is_refused(member: int, directory: Path) -> None:
    with pytest.raises(UserError, match=rf"member={member}: found 2 members in .*, expected a number from 0 to 1"):
        member_checkpoints.directory_of(directory, member)


def test_a_directory_of_several_runs_is_refused_where_one_is_expected(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds 2 runs; name one of them: .*/member-0 to member-1"):
        members_file.refuse_several(directory)
    (tmp_path / "single").mkdir()
    members_file.refuse_several(tmp_path / "single")
    members_file.refuse_several(tmp_path / "nowhere")


def test_a_directory_without_the_file_holds_no_members(tmp_path: Path) -> None:
    assert not members_file.holds_members(tmp_path)
    assert not members_file.holds_members(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"holds no members: there is no members\.json in it"):
        member_checkpoints.directory_of(tmp_path, 0)


NOT_MEMBERS = [
    "[]", "3", "null", "{}", '{"members": {}}', listed(), listed("member-0"), listed(one(directory="../gift")),
    listed(one(directory="/etc")), listed(one(directory="member-0/../../gift")), listed(one(directory="member-")),
    listed(one(directory="member-0\n")), listed(one(directory="member-00000")), listed(one(directory="member-٣")),
    listed(one(directory=0)), listed(one(directory=["member-0"])), listed(one(seed="0")), listed(one(seed=True)),
    listed(one(seed=0.5)), listed(one(settings=[])), listed(one(settings=None)), listed(one(more=1)),
    listed({"directory": "member-0"}), listed(*[one()] * (MOST_MEMBERS + 1)),
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_MEMBERS, ids=lambda text: text[:60])
def test_what_no_training_writes_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / members_file.FILE).write_text(text)
    with pytest.raises(UserError, match=r"members\.json (does not list members|is|has|cannot be read)"):
        members_file.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (listed(one(), one(seed=1)), "names one directory twice"),
        (listed(one(), format=FORMAT + 1), "format"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"members": NaN}', "cannot be read"),
    ],
    ids=["twice", "newer", "cut", "deep", "nan"],
)
def test_a_damaged_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / members_file.FILE).write_text(text)
    with pytest.raises(UserError, match=message):
        members_file.read(tmp_path)


def test_nothing_is_read_through_links_or_pipes(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (directory / "member-1").symlink_to(elsewhere)
    with pytest.raises(UserError, match="member-1 is a link, expected a directory"):
        members_file.read(directory)
    (directory / members_file.FILE).rename(elsewhere / members_file.FILE)
    (directory / members_file.FILE).symlink_to(elsewhere / members_file.FILE)
    with pytest.raises(UserError, match=r"members\.json"):
        members_file.read(directory)
    (directory / members_file.FILE).unlink()
    os.mkfifo(directory / members_file.FILE)
    with pytest.raises(UserError, match=r"members\.json"):
        members_file.read(directory)
