"""Signatures with a key of the user's own: HMAC-SHA256 over canonical JSON.

The key is 32 random bytes in a file that only its user can read, under the user's state directory. A signature proves
that this user, with this state directory, has written the content that it covers; others cannot verify it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Final

KEY_BYTES: Final = 32


class NoKey(Exception):
    """There is no usable key; the message says the reason and the fix."""


def key_file() -> Path:
    """The path of this user's key."""
    home = os.environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.local/state"))
    return state / "runnel" / "key"


def read_key(path: Path) -> bytes:
    """The key; raises `NoKey` if there is none, or if other users could have read or replaced it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NoKey(f"there is no key at {path}") from None
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise NoKey(f"the key {path} cannot be read: {why}; remove it, and the next run makes a new one") from None
    try:
        found, above = os.fstat(fd), os.stat(path.parent)
        if not stat.S_ISREG(found.st_mode) or found.st_size != KEY_BYTES:
            raise NoKey(f"{path} is no key; remove it, and the next run makes a new one")
        for what, status, bits in ((path, found, 0o077), (path.parent, above, 0o022)):
            if status.st_uid != os.geteuid():
                raise NoKey(f"{what} belongs to another user (uid {status.st_uid}); remove it")
            if status.st_mode & bits:
                mode = stat.S_IMODE(status.st_mode)
                raise NoKey(f"others have access to {what} (mode {mode:o}); remove the key, and run: chmod go= {what}")
        return os.read(fd, KEY_BYTES)
    finally:
        os.close(fd)


def make_key(path: Path) -> bytes:
    """The key, created if there is none yet; of processes that do so at once, all get the same."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NoKey(f"the key {path} cannot be made: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.lexists(path):
            _write(path, secrets.token_bytes(KEY_BYTES))
    except OSError as error:
        raise NoKey(f"the key {path} cannot be made: {error.strerror}") from None
    finally:
        os.close(lock)
    return read_key(path)


def _write(path: Path, key: bytes) -> None:
    temporary = path.with_name(f".key.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, key)
        os.fsync(fd)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def canonical(value: Any) -> bytes:
    """JSON in which equal values are equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def sign(value: Any, key: bytes) -> str:
    return hmac.new(key, canonical(value), hashlib.sha256).hexdigest()


def is_signed(value: Any, signature: Any, key: bytes) -> bool:
    if not isinstance(signature, str) or not signature.isascii():
        return False
    try:
        return hmac.compare_digest(sign(value, key), signature)
    except (ValueError, RecursionError):  # nested too deeply to have been signed
        return False


def fingerprint(key: bytes) -> str:
    """Identifies a key without revealing it."""
    return hashlib.sha256(b"runnel key " + key).hexdigest()[:16]
