"""A process that has imported all of Runnel and forks itself for each command, which it watches.

It reads cases as JSON, one a line, and answers each with what happened: the exit status or None where it had to be
killed, what was printed, and every offence: code that was loaded from below a forbidden directory, and files that were
opened below one that is off limits. Nothing here starts threads or JAX's backend, so that it can be forked.
"""

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path

WARM = (
    "runnel.cli.main", "runnel.execution.training", "runnel.evaluation.evaluate", "runnel.reporting.plot",
    "runnel.cli.catalog", "runnel.algorithms.reinforce", "runnel.distributions.inline", "runnel.distributions.coarse",
    "runnel.envs.gymnasium", "orbax.checkpoint",
    "tensorboardX", "tensorboardX.summary", "tensorboardX.proto.event_pb2", "gymnasium.envs.classic_control",
    "matplotlib.figure", "matplotlib.ticker", "matplotlib.backends.backend_agg", "rich.live", "rich.progress", "jax",
    "jax.numpy", "flax", "optax", "rlax",
)  # fmt: skip

MEMORY_BYTES = 6 << 30
"""More than this beyond what the process has mapped is taken for an attempt to read something without end."""

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch(case, offences):
    """Reports, from now on, code from where no code may come from, and files opened where none may be."""
    no_code = tuple(os.path.realpath(path) + "/" for path in case.get("no_code", ()))
    untouched = tuple(os.path.realpath(path) + "/" for path in case.get("untouched", ()))
    busy = []

    def hook(event, args):
        if event not in ("exec", "import", "open", "ctypes.dlopen", "subprocess.Popen", "os.system") or busy:
            return
        busy.append(event)
        try:
            if event == "exec":
                name = getattr(args[0], "co_filename", "")
            elif event in ("subprocess.Popen", "os.system"):
                return offences.append(f"{event} {args[0]!r}")
            else:
                name = args[1] if event == "import" else args[0]
            if not isinstance(name, str | bytes | os.PathLike):
                return
            if event == "exec" and not os.path.isabs(name):
                return  # `<string>`: made by code that was loaded already
            real = os.fsdecode(name)
            if event == "open" and (args[2] or 0) & os.O_NOFOLLOW:  # the last part is not resolved
                real = os.path.join(os.path.realpath(os.path.dirname(real)), os.path.basename(real))
            else:
                real = os.path.realpath(real)
            if event != "open" and real.startswith(no_code):
                offences.append(f"{event} of {real}")
            if event == "open" and real.startswith(untouched):
                offences.append(f"open of {real}{' for writing' if (args[2] or 0) & WRITES else ''}")
        except (OSError, ValueError):
            pass
        finally:
            busy.pop()

    sys.addaudithook(hook)


def drop_privileges():
    """Root reads what nobody may read; without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH it does not."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    data[0] &= ~0b110
    libc.capset(header, data)


def run(case, out):
    """The command, in a process of its own."""
    offences, verdict = [], {"statuses": []}
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDONLY)
        log = os.open(case["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for fd, source in ((0, nowhere), (1, log), (2, log)):
            os.dup2(source, fd)
        os.chdir(case["cwd"])
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
        if case.get("unprivileged"):
            drop_privileges()
        watch(case, offences)
        from runnel.cli.main import main

        for argv in case["argvs"]:
            print(f"$ {argv}", flush=True)
            verdict["statuses"].append(status(main, argv))
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os.write(out, json.dumps({**verdict, "offences": offences[:20]}).encode())
    os._exit(0)


def status(main, argv):
    try:
        return main(argv)
    except SystemExit as end:
        return end.code
    except BaseException:
        traceback.print_exc()
        return "raised"


def judged(case):
    """Forks, waits no longer than the case may take, and says what happened."""
    began = time.monotonic()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        run(case, writer)
    os.close(writer)
    pidfd = os.pidfd_open(pid)
    ended = bool(select.select([pidfd], [], [], case.get("limit_s", 60))[0])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    os.close(pidfd)
    told = os.read(reader, 1 << 20)
    os.close(reader)
    verdict = json.loads(told) if told else {"statuses": [f"ended by {status}" if ended else "hangs"], "offences": []}
    text = Path(case["log"]).read_text(errors="backslashreplace") if os.path.exists(case["log"]) else ""
    seconds = time.monotonic() - began
    return {**verdict, "text": text[-20000:], "seconds": seconds, "megabytes": used.ru_maxrss / 1024}


def trace():
    """What tracing has once been through is known to every fork, and costs each of them less."""
    from runnel.execution.building import build
    from runnel.planning.machine import Machine
    from runnel.runtime.single_process.program import carry_types

    machine = Machine(cpus=2, devices=("cpu:0",))
    built = build("reinforce", "CartPole-v1", "inline", 2, {"hidden": (4,), "unroll": 8}, machine=machine)
    carry_types(built.graph, built.environment)


def main():
    for name in WARM:
        importlib.import_module(name)
    trace()
    threads = len(os.listdir("/proc/self/task"))
    print(json.dumps({"ready": threads}), flush=True)
    for line in sys.stdin:
        print(json.dumps(judged(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
