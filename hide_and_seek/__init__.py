"""Hide-and-seek in JAX: the environment of Baker et al. (2019), with simpler physics.

runnel train ppo hide:quadrant
environment = hide_and_seek.HideAndSeek("quadrant", seekers=1)
"""

from hide_and_seek.environment import FULL, GAMES, QUADRANT, HideAndSeek, Rules, State
