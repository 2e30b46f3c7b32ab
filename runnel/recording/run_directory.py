"""Files of a run directory, which may be untrusted: opened without following links, as plain files, bounded.

    content = run_directory.read(run_dir, "checkpoints/000000000012/manifest.json", most_bytes=1 << 26)

Names are relative to the run directory, with `/` between their parts. Only the run directory's own path may lead
through links: it is the user's. Below it every part is opened in the directory before it, so that no link is followed
even if one is created meanwhile. Anything but a plain file is refused with `NotPlain` before it is opened: opening a
named pipe waits, and opening a device may do anything.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Final

from runnel.errors import did_you_mean, near

MOST_DEEP: Final = 32
MOST_FILES: Final = 100_000
"""A tree that goes deeper, or has more files, is not one that a run has written."""

MOST_BESIDE: Final = 10_000
"""Entries of a directory that are looked at for a similar name."""

SPARSE: Final = 16
SPARSE_BYTES: Final = 1 << 30
"""A file of more bytes must occupy at least 1/SPARSE of them: holes cost nothing to send, and hours to read."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPlain(OSError):
    """A file or directory has been replaced by something that runs do not write."""

    def __init__(self, name: str, reason: str):
        super().__init__(errno.EINVAL, reason)
        self.filename = name


@contextlib.contextmanager
def directory(root: Path | str, name: str = "") -> Iterator[int]:
    """A descriptor of the run directory, or of a directory below it."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in _parts(name):
            fd, above = _enter(fd, part), fd
            os.close(above)
        yield fd
    finally:
        os.close(fd)


def make_directory(root: Path | str, name: str, *, new: bool = False) -> None:
    """Makes a directory below the run directory, and those above it. `new`: it must not exist."""
    parts = _parts(name)
    for depth in range(1, len(parts) + 1):
        with directory(root, "/".join(parts[: depth - 1])) as above:
            try:
                os.mkdir(parts[depth - 1], dir_fd=above)
            except FileExistsError:
                if new and depth == len(parts):
                    raise
                os.close(_enter(above, parts[depth - 1]))


def open_to_read(root: Path | str, name: str, most_bytes: int) -> BufferedReader:
    """Opens a plain file of at most `most_bytes` bytes."""
    fd = _open(root, name, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size > most_bytes:
            raise NotPlain(name, f"it has {size:,} bytes, which is more than a run writes (at most {most_bytes:,})")
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read(root: Path | str, name: str, most_bytes: int) -> bytes:
    """The content of a plain file of at most `most_bytes` bytes."""
    with open_to_read(root, name, most_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def lines(root: Path | str, name: str, most_bytes: int, longest: int = 1 << 24) -> Iterator[bytes]:
    """The lines of a plain file, one at a time, each with its end."""
    with open_to_read(root, name, most_bytes) as file:
        while line := file.readline(longest + 1):
            if len(line) > longest:
                raise NotPlain(name, f"it has a line of more than {longest:,} bytes, which no run writes")
            yield line


def open_to_append(root: Path | str, name: str, flags: int = os.O_WRONLY) -> int:
    """A descriptor to append to a plain file, which is created if necessary."""
    return _open(root, name, flags | os.O_APPEND | os.O_CREAT)


def truncate(root: Path | str, name: str, size: int) -> None:
    fd = _open(root, name, os.O_RDWR)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def replace(root: Path | str, name: str, content: bytes, durable: bool = True) -> None:
    """Replaces a file atomically. `durable`: even if power is lost."""
    *above, last = _parts(name)
    temporary = f".{last}.{os.getpid()}"
    with directory(root, "/".join(above)) as fd:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=fd)  # of a process of the same number that was killed
        new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=fd)
        try:
            with os.fdopen(new, "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.rename(temporary, last, src_dir_fd=fd, dst_dir_fd=fd)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=fd)


def remove(root: Path | str, name: str) -> None:
    """Removes a file, or a link itself, if it exists."""
    *above, last = _parts(name)
    with contextlib.suppress(FileNotFoundError), directory(root, "/".join(above)) as fd:
        os.unlink(last, dir_fd=fd)


def remove_tree(root: Path | str, name: str) -> None:
    """Removes a directory with its content, or a file of that name. Files that cannot be removed stay."""
    *above, last = _parts(name)
    with contextlib.suppress(OSError, RecursionError), directory(root, "/".join(above)) as fd:
        if stat.S_ISDIR(os.stat(last, dir_fd=fd, follow_symlinks=False).st_mode):
            shutil.rmtree(last, ignore_errors=True, dir_fd=fd)  # by descriptors: follows no link
        else:
            os.unlink(last, dir_fd=fd)


def absent(path: Path | str) -> str:
    """What to say of a run directory that is not there: also which ones beside it have a similar name."""
    beside, known = Path(path).parent, list[str]()
    with contextlib.suppress(OSError, ValueError), os.scandir(beside) as entries:
        known = [entry.name for entry in itertools.islice(entries, MOST_BESIDE) if entry.is_dir()]
    alike = near(Path(path).name, known)
    return f"there is no directory {path}" + (did_you_mean(str(beside / name) for name in alike) if alike else "")


def exists(root: Path | str, name: str) -> bool:
    """Whether the name exists, even as a dangling link."""
    *above, last = _parts(name)
    try:
        with directory(root, "/".join(above)) as fd:
            os.stat(last, dir_fd=fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def names(root: Path | str, name: str) -> list[str]:
    """The names in a directory; none if there is no directory."""
    try:
        with directory(root, name) as fd:
            return os.listdir(fd)
    except FileNotFoundError:
        return []


def tree(root: Path | str, name: str) -> dict[str, int]:
    """The size of every file below a directory, by its relative name; refuses links and other special files."""
    with directory(root, name) as fd:
        return dict(_tree(fd, "", [MOST_FILES]))


def check_file(root: Path | str, name: str, *, written: bool = False) -> None:
    """Refuses an existing file that is not a plain one."""
    *above, last = _parts(name)
    with contextlib.suppress(FileNotFoundError), directory(root, "/".join(above)) as fd:
        _check_plain(os.stat(last, dir_fd=fd, follow_symlinks=False), name, written)


def check_directory(root: Path | str, name: str) -> None:
    """Refuses an existing file that is not a directory."""
    with contextlib.suppress(FileNotFoundError), directory(root, name):
        pass


def _parts(name: str) -> list[str]:
    parts = name.split("/") if name else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise NotPlain(name, "such a name leads out of the run directory")
    return parts


def _enter(above: int, part: str) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            kind = _kind(os.stat(part, dir_fd=above, follow_symlinks=False).st_mode)
            raise NotPlain(part, f"'{part}' is {kind}, expected a directory; {_REMEDY}") from None
        raise


def _open(root: Path | str, name: str, flags: int) -> int:
    *above, last = _parts(name)
    if not last:
        raise NotPlain(name, "it has no name")
    written = flags & (os.O_WRONLY | os.O_RDWR) != 0
    with directory(root, "/".join(above)) as fd:
        try:
            _check_plain(os.stat(last, dir_fd=fd, follow_symlinks=False), last, written)
            flags &= ~os.O_CREAT
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            flags |= os.O_EXCL
        opened = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=fd)
    try:
        _check_plain(os.fstat(opened), last, written)  # it may be another by now
        os.set_blocking(opened, True)
    except BaseException:
        os.close(opened)
        raise
    return opened


_REMEDY: Final = "a run directory holds plain files and directories, and links in it are not followed"


def _check_plain(found: os.stat_result, name: str, written: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPlain(name, f"'{name}' is {_kind(found.st_mode)}, expected a plain file; {_REMEDY}")
    if written and found.st_nlink > 1:
        raise NotPlain(
            name, f"'{name}' has {found.st_nlink} names (hard links), and writing would change them all; copy it"
        )


def _check_holes(found: os.stat_result, name: str) -> None:
    if found.st_size > SPARSE_BYTES and found.st_blocks * 512 * SPARSE < found.st_size:
        raise NotPlain(name, f"'{name}' is said to have {found.st_size:,} bytes and consists of holes")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "no file")


def _tree(fd: int, prefix: str, left: list[int]) -> Iterator[tuple[str, int]]:
    if prefix.count("/") > MOST_DEEP:
        raise NotPlain(prefix[:60], f"directories are nested more than {MOST_DEEP} deep")
    with os.scandir(fd) as entries:
        for entry in entries:
            left[0] -= 1
            if left[0] < 0:
                raise NotPlain(prefix[:60], f"there are more than {MOST_FILES:,} files")
            found = entry.stat(follow_symlinks=False)
            name = prefix + entry.name
            if stat.S_ISDIR(found.st_mode):
                below = os.open(entry.name, _DIRECTORY, dir_fd=fd)
                try:
                    yield from _tree(below, name + "/", left)
                finally:
                    os.close(below)
            else:
                _check_plain(found, name, written=False)
                _check_holes(found, name)
                yield name, found.st_size
