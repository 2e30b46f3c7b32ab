"""Claim: on a CPU, training a convolutional network takes as long inside a loop as outside of one.

Four gradient steps of a Nature CNN, in a `lax.scan`, one after the other, and one after the other inside a
`lax.while_loop`; and PPO on an environment of pictures as one XLA program (`fused`). Each with XLA's own treatment of
convolutions and with Runnel's (`runnel/config/cpu_convolutions.py`), in turn, each time in a new process.

    python benchmarks/convolutions.py
    python benchmarks/convolutions.py --runs 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine
from benchmarks import _pictures

BATCH, STEPS = 32, 4
CASES = ("scan", "unrolled", "unrolled in a while_loop", "fused PPO")


def measure(own: bool) -> dict[str, float]:
    """Seconds of each case, with Runnel's `own` lowering or XLA's: four gradient steps, and an iteration of PPO."""
    from runnel.config import cpu_convolutions
    from runnel.config.jax_config import configure_jax

    if not own:
        cpu_convolutions.register = lambda: None
    configure_jax()
    return {**gradient_steps(), "fused PPO": ppo()}


def gradient_steps() -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    from runnel.nn import NatureCNN

    network: Any = NatureCNN()
    batches = jax.random.uniform(jax.random.key(0), (STEPS, BATCH, 84, 84, 4))
    params = network.init(jax.random.key(1), batches[0, 0])

    def step(params: Any, images: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.square(jax.vmap(lambda image: network.apply(params, image))(images)).mean()

        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, jax.grad(loss)(params))

    def unrolled(params: Any, batches: Any) -> Any:
        for i in range(STEPS):
            params = step(params, batches[i])
        return params

    def in_while(params: Any, batches: Any) -> Any:
        return lax.while_loop(lambda c: c[1] < 1, lambda c: (unrolled(c[0], batches), c[1] + 1), (params, 0))[0]

    loops = (lambda p, b: lax.scan(lambda p, x: (step(p, x), None), p, b)[0], unrolled, in_while)
    seconds = {}
    for name, loop in zip(CASES, loops, strict=False):
        compiled = jax.jit(loop).lower(params, batches).compile()
        jax.block_until_ready(compiled(params, batches))
        began = time.perf_counter()
        jax.block_until_ready(compiled(params, batches))
        seconds[name] = time.perf_counter() - began
    return seconds


def ppo() -> float:
    """Seconds an iteration takes, of 8 environments and 16 steps, with 4 epochs of 4 minibatches."""
    import runnel
    from runnel.algorithms.ppo import PPO

    with tempfile.TemporaryDirectory() as directory:
        run = runnel.train(
            PPO(unroll=16), _pictures.NAME, "fused", envs=8, steps=8 * 16 * 6, run_dir=f"{directory}/run", quiet=True
        )
        return 8 * 16 / run.result["steps_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", help="a directory for the results")
    parser.add_argument("--side", choices=("xla", "runnel"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side == "runnel")))
        return
    found: dict[str, list[dict[str, float]]] = {"xla": [], "runnel": []}
    for _ in range(args.runs):
        for side, runs in found.items():
            command = [sys.executable, __file__, "--side", side]
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    for case in CASES:
        xla, ours = (statistics.median(run[case] for run in found[side]) for side in ("xla", "runnel"))
        print(f"{case:<26} XLA's own {xla:7.3f} s   Runnel's {ours:7.3f} s   {xla / ours:5.1f}x")
    print(machine.save("convolutions", {"machine": machine.describe("flax"), "seconds": found}, args.out))


if __name__ == "__main__":
    main()
