"""What the workers of test_launch.py do. Imported by name from its file, so it must not import JAX itself."""

import ctypes
import os
import random
import signal
import subprocess
import sys
import time

prepared = None


def report(job, control, fds):
    """Tells what this process is like, then ends."""
    print("reporting")
    control.send(
        {
            "job": job,
            "pid": os.getpid(),
            "parent": os.getppid(),
            "group": os.getpgrp(),
            "argv": sys.argv,
            "path": sys.path,
            "directory": os.getcwd(),
            "environ": dict(os.environ),
            "jax": "jax" in sys.modules,
            "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
            "control": control.fileno(),
            "threads": len(os.listdir("/proc/self/task")),
            "prepared": prepared,
            "random": random.random(),
        }
    )


def read_fds(job, control, fds):
    control.send({"texts": [os.pread(fd, 100, 0).decode() for fd in fds]})


def numpy_random(job, control, fds):
    import numpy as np

    control.send({"drawn": np.random.rand()})


def echo(job, control, fds):
    """Sends back what it receives, until nobody is there."""
    while not control.closed:
        message = control.receive(1.0)
        if message is None:
            continue
        if "exit" in message.value:
            sys.exit(message.value["exit"])
        if message.arrays:
            control.send_arrays(message.value, message.arrays)
        else:
            control.send(message.value, message.fds)
        for fd in message.fds:
            os.close(fd)


def linger(job, control, fds):
    """Does not end by itself, nor by SIGTERM if told so, nor alone if told to start something."""
    if job.get("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    started = subprocess.Popen(["sleep", "1000"]).pid if job.get("starts") else None
    control.send({"pid": os.getpid(), "server": os.getppid(), "started": started})
    for _ in range(600):
        time.sleep(1)


def fail(job, control, fds):
    if job.get("user"):
        from runnel.errors import UserError

        raise UserError("found this, expected that; do so")
    raise ValueError("no such luck" + "!" * job.get("length", 0))


def crash(job, control, fds):
    ctypes.string_at(0)


def jit(job, control, fds):
    import jax

    doubled = jax.jit(lambda x: 2 * x)(21.0)
    control.send(
        {
            "value": float(doubled),
            "dtype": str(doubled.dtype),
            "platform": jax.default_backend(),
            "devices": jax.device_count(),
            "prepared": prepared,
        }
    )


def prepare(job):
    global prepared
    prepared = [job["value"], os.getpid()]


def prepare_backend(job):
    import jax

    global prepared
    prepared = float(jax.numpy.ones(()))


def prepare_badly(job):
    raise RuntimeError("not now")


def prepare_to_die(job):
    os.kill(os.getpid(), signal.SIGKILL)
