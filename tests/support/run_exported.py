"""Runs exported policies without Runnel: `python -I run_exported.py TRIALS`, a JSON list of directories.

A directory has an exported policy and `trial.npz`, which holds by step and input `STEP/NAME`, and `STEP/first`: the
rows in which an episode begins. Each is run in batches of 1, 3 and all other rows; `found.npz` has `STEP/OUTPUT`.
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.modules["runnel"] = None  # importing it fails


def stablehlo(path):
    import jax.export

    return jax.export.deserialize(bytearray(path.read_bytes())).call


def onnx(path):
    sys.modules["jax"] = None
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    return lambda *inputs: session.run(None, dict(zip(names, inputs, strict=True)))


def run(directory):
    described = json.loads((directory / "model.json").read_text())
    act = {"stablehlo": stablehlo, "onnx": onnx}[described["format"]](directory / described["file"])
    trial, found = np.load(directory / "trial.npz"), {}
    memory = {}
    for step in range(int(trial["steps"])):
        rows = len(trial[f"{step}/first"])
        inputs = []
        for port in described["inputs"]:
            if port["role"] == "memory":
                fresh = np.broadcast_to(np.array(port["initial"], port["dtype"]), (rows, *port["shape"][1:]))
                first = trial[f"{step}/first"].reshape(rows, *[1] * (fresh.ndim - 1))
                inputs.append(np.where(first, fresh, memory.get(port["next"], fresh)))
            else:
                inputs.append(trial[f"{step}/{port['name']}"].astype(port["dtype"]))
            assert inputs[-1].dtype == port["dtype"]
            assert list(inputs[-1].shape[1:]) == port["shape"][1:]
        parts = [act(*(x[begin:end] for x in inputs)) for begin, end in ((0, 1), (1, 4), (4, rows))]
        outputs = [np.concatenate([np.asarray(x) for x in each]) for each in zip(*parts, strict=True)]
        for port, value in zip(described["outputs"], outputs, strict=True):
            assert value.dtype == port["dtype"], (value.dtype, port)
            assert list(value.shape[1:]) == port["shape"][1:]
            found[f"{step}/{port['name']}"] = memory[port["name"]] = value
    np.savez(directory / "found.npz", **found)
    return described["format"]


formats = {run(Path(name)) for name in json.loads(sys.argv[1])}
modules = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
assert "runnel" not in modules
assert formats == {"stablehlo"} or not {"jax", "jaxlib", "flax"} & modules
