"""The interface by which a member group trains its members."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from runnel.config.run_config import RunConfig

END_S: Final = 60.0
"""The seconds that members may take to end after they were asked to."""


class WaitingMember(NamedTuple):
    """A member that has something left to train."""

    number: int
    directory: Path
    config: dict[str, Any]
    asked: RunConfig


class Standing(NamedTuple):
    """The progress of a member."""

    env_steps: int
    mean_return: float | None
    steps_per_second: float | None = None


class MemberBackend(Protocol):
    """The interface of a backend, which trains members."""

    notes: list[str]
    """Notes for the user, shown before training begins."""

    def advance(self) -> None:
        """Begins members for which there are resources. To be called several times a second."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns after `seconds`, or as soon as members have ended."""
        ...

    def over(self) -> bool:
        """Whether all have ended."""
        ...

    def standing(self) -> dict[int, Standing]:
        """The progress of the members that train now."""
        ...

    def news(self) -> list[str]:
        """Events of members since the last call."""
        ...

    def stop(self, number: int) -> None:
        """A signal asks all to end, with checkpoints; called in its handler."""
        ...

    def ask_for_checkpoint(self) -> None:
        """Members that train write a checkpoint soon."""
        ...

    def abort(self) -> None:
        """Ends all at once."""
        ...

    def close(self) -> None: ...
