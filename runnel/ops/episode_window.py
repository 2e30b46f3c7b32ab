"""How many of the newest episodes a mean return is over. Without JAX, for what only shows it."""

from typing import Final

WINDOW: Final = 100
"""`mean_return` is over this many of the newest episodes."""
