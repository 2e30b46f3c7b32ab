"""A Gymnasium environment with rewards of its own for learning, which reports the return of the task."""

import gymnasium


class Shaped(gymnasium.Wrapper):
    """MountainCar-v0 with a reward for speed; the reported return is that of MountainCar."""

    def __init__(self):
        super().__init__(gymnasium.make("MountainCar-v0"))

    def reset(self, **arguments):
        self.score = 0.0
        return self.env.reset(**arguments)

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.score += reward
        own = {"return": self.score, "is_success": terminated}
        return observation, reward + 10 * abs(observation[1]), terminated, truncated, {**info, **own}
