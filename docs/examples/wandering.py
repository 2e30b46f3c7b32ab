"""A function that acts for a group of agents."""

import jax


def wander(observation, key):
    """One of five directions at random, whatever the agent sees."""
    return jax.random.randint(key, (), 0, 5)
