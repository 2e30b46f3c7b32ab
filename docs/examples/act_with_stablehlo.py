"""A program without Runnel that acts with an exported policy: `python act_with_stablehlo.py exported-stablehlo`."""

import json
import sys
from pathlib import Path

import gymnasium
import jax.export
import numpy as np

directory = Path(sys.argv[1])
description = json.loads((directory / "model.json").read_text())
act = jax.export.deserialize(bytearray((directory / description["file"]).read_bytes())).call

env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    (action,) = act(observation[None].astype(np.float32))  # a batch of one
    observation, reward, terminated, truncated, _ = env.step(int(action[0]))
    total, done = total + float(reward), terminated or truncated
print(f"{description['algorithm']} reaches {total:.0f}")
