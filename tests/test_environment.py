"""What every environment shares: the seeds of its episodes."""

from itertools import product

from runnel.environment import episode_seed


def test_every_episode_has_a_seed_of_its_own():
    """Made of the run's seed, the environment's index and the episode's number, each of which makes a difference."""
    seeds = {episode_seed(*each) for each in product((0, 1, 2), range(20), range(20))}
    assert len(seeds) == 3 * 20 * 20
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_seed_of_an_episode_never_changes():
    """An episode in progress is rebuilt from it, also by a later version."""
    assert [episode_seed(*each) for each in ((0, 0, 0), (7, 3, 11), (-1, 2, 5))] == [
        1137086854,
        1726131862,
        1245979517,
    ]
