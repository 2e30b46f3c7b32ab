"""A program without Runnel or JAX that acts with an exported policy: `python act_with_onnx.py cartpole-onnx`."""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import onnxruntime

directory = Path(sys.argv[1])
description = json.loads((directory / "model.json").read_text())
session = onnxruntime.InferenceSession(directory / description["file"])

env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    (action,) = session.run(["action"], {"observation": observation[None].astype(np.float32)})  # a batch of one
    observation, reward, terminated, truncated, _ = env.step(int(action[0]))
    total, done = total + float(reward), terminated or truncated
print(f"{description['algorithm']} reaches {total:.0f}")
