"""Videos of environments: frames piped into ffmpeg one at a time, so that an episode of any length fits.

imageio's own writer would fork this process to start ffmpeg, which JAX, being multithreaded, warns about; so only its
packaged ffmpeg is used.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from runnel.errors import NotInstalled, UserError

FPS: Final = 30
CODECS: Final = {
    ".mp4": ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart"],
    # A palette of its own for each film: the standard one has few greys.
    ".gif": ["-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse"],
}


class Video:
    """A video that is being written."""

    def __init__(self, ffmpeg: str, path: Path):
        self._command = [ffmpeg, "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24"]
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None

    def add(self, frame: np.ndarray) -> None:
        """[H, W, 3] uint8, all of one size."""
        height, width = (side - side % 2 for side in frame.shape[:2])  # players want even sides
        if self._process is None:
            size = ["-s", f"{width}x{height}", "-r", str(FPS), "-i", "-"]
            command = [*self._command, *size, *CODECS[self._path.suffix.lower()], str(self._path)]
            # A session of its own: Ctrl-C is for us, and we end it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
            )
        assert self._process.stdin is not None
        # Where ffmpeg has gone, `finish` says why.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(np.ascontiguousarray(frame[:height, :width], np.uint8).tobytes())

    def finish(self) -> None:
        """Waits until the file is whole."""
        if self._process is None:
            return
        _, complaint = self._process.communicate()
        if self._process.returncode:
            reason = complaint.decode(errors="replace").strip().splitlines() or ["it reported no reason"]
            raise UserError(f"ffmpeg could not write the video: {reason[-1]}")

    def abandon(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def recording_video(path: Path | str | None) -> Iterator[Video | None]:
    """Writes a video to `path`, which exists once it is whole; without a path, nothing is written."""
    if path is None:
        yield None
        return
    path = Path(path)
    if path.suffix.lower() not in CODECS:
        raise UserError(
            f"video={path}: found ending '{path.suffix}', expected {' or '.join(CODECS)}", keywords=("video",)
        )
    directory = path.absolute().parent
    if not os.access(directory, os.W_OK):
        raise UserError(f"video={path}: cannot write into {directory}", keywords=("video",))
    try:
        import imageio_ffmpeg
    except ImportError:
        raise NotInstalled("video=", "ffmpeg", "video", keywords=("video",)) from None
    # Environments that draw with SDL need no screen for it, and need not complain that there is none.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    temporary = directory / f".{os.getpid()}.{path.name}"
    film = Video(imageio_ffmpeg.get_ffmpeg_exe(), temporary)
    try:
        yield film
        film.finish()
        temporary.replace(path)
    finally:
        film.abandon()
        temporary.unlink(missing_ok=True)
