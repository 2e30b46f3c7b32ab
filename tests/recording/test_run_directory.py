"""Files of a run directory are opened without following links, as plain files of bounded size."""

import os
import socket
import stat

import pytest

from runnel.errors import UserError
from runnel.launch.local_launcher import opened_log
from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, check_layout, write_atomically

HUGE = 200 << 30


def put(kind, path, target):
    """Something that is no plain file, in the place of one."""
    match kind:
        case "link":
            path.symlink_to(target)
        case "dangling":
            path.symlink_to(target.with_name("nothing"))
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "directory":
            path.mkdir()
        case "sparse":
            path.touch()
            os.truncate(path, HUGE)
        case "hard link":
            os.link(target, path)


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.write_text("mine")
    return path


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "directory", "sparse"])
def test_only_plain_files_of_bounded_size_are_read(kind, root, outside):
    put(kind, root / "file", outside)
    for read in (run_directory.read, lambda *given: list(run_directory.lines(*given))):
        with pytest.raises(run_directory.NotPlain):
            read(root, "file", 1 << 20)


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "directory", "hard link"])
def test_nothing_else_is_written_to(kind, root, outside):
    (root / "logs").mkdir()
    for name in ("file", "logs/file"):
        put(kind, root / name, outside)
        with pytest.raises(OSError, match=r"names|expected"):
            AppendOnlyFile(root / name) if name == "file" else run_directory.open_to_append(root, name)
    with pytest.raises(UserError, match=r"names|expected"):
        opened_log(root / "logs" / "file")
    with pytest.raises(run_directory.NotPlain):
        run_directory.truncate(root, "file", 0)
    assert outside.read_text() == "mine"
    assert sorted(path.name for path in outside.parent.iterdir()) == ["outside", "run"]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "hard link", "sparse"])
def test_a_file_that_is_replaced_may_have_been_anything(kind, root, outside):
    put(kind, root / "file", outside)
    put(kind, root / f".file.{os.getpid()}", outside)  # where the new one is made
    write_atomically(root / "file", b"new")
    assert (root / "file").read_bytes() == b"new"
    assert not (root / "file").is_symlink()
    assert outside.read_text() == "mine"
    assert [path.name for path in root.iterdir()] == ["file"]


def test_no_directory_below_is_a_link(root, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    (root / "logs").symlink_to(tmp_path / "other")
    (root / "up").symlink_to("..")
    for do in (
        lambda: run_directory.read(root, "logs/file", 100),
        lambda: run_directory.open_to_append(root, "logs/file"),
        lambda: run_directory.open_to_append(root, "up/other/file"),
        lambda: run_directory.make_directory(root, "logs/more"),
        lambda: run_directory.make_directory(root, "up"),
        lambda: run_directory.replace(root, "logs/file", b"theirs"),
        lambda: run_directory.remove(root, "logs/file"),
        lambda: run_directory.tree(root, "logs"),
        lambda: run_directory.tree(root, ""),
        lambda: run_directory.names(root, "logs"),
        lambda: run_directory.read(root, "../other/file", 100),
        lambda: run_directory.read(root, "/etc/hostname", 100),
    ):
        with pytest.raises(run_directory.NotPlain):
            do()
    run_directory.remove_tree(root, "up/other")
    run_directory.remove_tree(root, "logs")  # the link itself
    run_directory.remove_tree(root, "up")
    assert (tmp_path / "other" / "file").read_text() == "mine"
    assert list(root.iterdir()) == []


def test_the_run_directory_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    os.close(run_directory.open_to_append(tmp_path / "link", "file"))
    assert (root / "file").is_file()


def test_a_tree_is_removed_without_what_its_links_lead_to(root, outside):
    (root / "tree" / "below").mkdir(parents=True)
    (root / "tree" / "below" / "link").symlink_to(outside)
    (root / "tree" / "up").symlink_to("../..")
    run_directory.remove_tree(root, "tree")
    assert not (root / "tree").exists()
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "socket", "sparse"])
def test_a_tree_has_plain_files_only(kind, root, outside):
    (root / "tree" / "below").mkdir(parents=True)
    (root / "tree" / "below" / "file").write_bytes(b"123")
    assert run_directory.tree(root, "tree") == {"below/file": 3}
    put(kind, root / "tree" / "below" / "other", outside)
    with pytest.raises(run_directory.NotPlain):
        run_directory.tree(root, "tree")


def test_a_tree_is_neither_deep_nor_has_it_many_files(root, monkeypatch):
    (root / "tree" / "/".join("x" * 40)).mkdir(parents=True)
    with pytest.raises(run_directory.NotPlain, match="deep"):
        run_directory.tree(root, "tree")
    monkeypatch.setattr(run_directory, "MOST_FILES", 20)
    with pytest.raises(run_directory.NotPlain, match="more than 20 files"):
        run_directory.tree(root, "tree")


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", ".lock", "logs", "checkpoints", "logs/actor-0.log"])
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_a_run_is_not_written_into_what_another_has_prepared(kind, name, root, outside):
    check_layout(root)
    if name.startswith("logs/"):
        (root / "logs").mkdir()
    put(kind, root / name, outside)
    with pytest.raises(UserError, match=r"expected a (plain file|directory)"):
        check_layout(root)


def test_a_path_that_checkpoints_cannot_have_is_refused_before_anything_is_written(tmp_path):
    run_dir = tmp_path / os.fsdecode(b"J\xfcrgen")
    with pytest.raises(UserError, match=r"J\\udcfcrgen: found a path that is not UTF-8"):
        check_layout(run_dir)
    assert not run_dir.exists()


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o027, 0o640, 0o750), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)]
)
def test_files_honour_the_umask(umask, file, folder, root):
    before = os.umask(umask)
    try:
        write_atomically(root / "replaced", b"")
        os.close(run_directory.open_to_append(root, "appended"))
        os.close(opened_log(root / "logs" / "log"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")}
    assert modes == {"replaced": file, "appended": file, "log": file, "logs": folder}


def test_a_directory_that_is_not_there_is_compared_with_those_beside_it(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "frist.txt").write_text("")
    said = f"there is no directory {tmp_path / 'frist'}"
    assert run_directory.absent(tmp_path / "frist") == f"{said}; did you mean '{tmp_path / 'first'}'?"
    assert run_directory.absent(f"{tmp_path}/other") == f"there is no directory {tmp_path}/other"
    assert run_directory.absent(tmp_path / "nowhere" / "first") == f"there is no directory {tmp_path}/nowhere/first"
    assert run_directory.absent("a\0b") == "there is no directory a\0b"
