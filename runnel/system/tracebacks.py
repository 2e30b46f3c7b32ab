"""Locates a thread: whether it is in JAX's compiler, and the innermost line of the user's code.

Frames of this process and the text that `faulthandler` writes for another process are read alike.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

COMPILER: Final = {
    "jax/_src/compiler.py": "",  # XLA at work, or reading what it compiled before
    "jax/_src/interpreters/mlir.py": "lower_",
    "jax/_src/interpreters/partial_eval.py": "trace_to_",
}
"""Functions by which JAX traces, lowers and compiles: by file, the prefix of the function's name."""

DEVICE: Final = "jax/_src/"
"""Files of JAX in which a thread that does not compile waits for a device, or for other processes of one program."""

_OURS: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = re.compile(r"[/\\](python\d+\.\d+|site-packages|dist-packages)[/\\]|^<")
_LINE: Final = re.compile(r'^\s+File "(.*)", line (\d+) in (.*)$')


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}, line {self.line})"


def main_thread() -> list[Frame]:
    """The stack of this process's main thread, the innermost call first."""
    return of(sys._current_frames().get(threading.main_thread().ident or 0))


def of(frame: FrameType | None) -> list[Frame]:
    """The calls of a stack, the innermost first."""
    found = []
    while frame is not None:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return found


def read(text: str) -> list[Frame]:
    """The main thread's stack in the output of `faulthandler`, which lists threads from the newest to the oldest."""
    last = re.split(r"^(?:Current thread|Thread) 0x", text, flags=re.MULTILINE)[-1]
    matches = map(_LINE.match, last.splitlines())
    return [Frame(match[1], int(match[2]), match[3]) for match in matches if match]


def compiles(stack: Sequence[Frame]) -> bool:
    """Whether JAX is compiling for this thread, which may take far longer than any work."""
    return any(
        frame.file.endswith(file) and frame.function.startswith(name)
        for frame in stack
        for file, name in COMPILER.items()
    )


def waits_for_device(stack: Sequence[Frame]) -> bool:
    return bool(stack) and DEVICE in stack[0].file and not compiles(stack)


def place(stack: Sequence[Frame]) -> Frame | None:
    """The frame in which a thread hangs: its innermost call in the user's own code, otherwise its innermost call."""
    return own(stack) or (stack[0] if stack else None)


def own(stack: Sequence[Frame]) -> Frame | None:
    """The innermost call in the user's own code."""
    return next((f for f in stack if not f.file.startswith(_OURS) and not _LIBRARY.search(f.file)), None)


def text() -> str:
    """The stack of this process's main thread, as a traceback shows it."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip()
