"""Builds what is published, installs the wheel where there is no checkout, and does with it what a new user does.

    make wheel
    make wheel WHEEL="--newest --python python3.12 python3.13"
    python tools/try_wheel.py --offline    # with the libraries of this Python, where there is no package index

The wheel is built from the source distribution, so that both are tried. Everything happens in a temporary directory.
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

USE = """
import json, re, signal, subprocess, sys, urllib.request
from pathlib import Path
import numpy as np
import runnel
from runnel.cli.main import main
from runnel.recording import named_sinks

assert {"mlflow", "trackio"} <= {*named_sinks.names()}, "the wheel registers no sinks"
assert Path(runnel.__file__).is_relative_to(sys.prefix), runnel.__file__
for text in (
    "list",
    "help faults#when-an-environment-fails",
    "help reference-algorithms#ppo",
    "doctor",
    "train ppo CartPole-v1 --distribution inline --steps 4096 --seed 1 --run-dir run --eval-every 2048 --quiet",
    "resume run --steps 6144 --quiet",
    "train ppo matrix:rock_paper_scissors --distribution fused --envs 8 --steps 4096 --run-dir fused --quiet",
    "train reinforce CartPole-v1 --distribution coarse --actors 2 --steps 1024 --run-dir coarse --quiet",
    "train reinforce matrix:rock_paper_scissors --seeds 2 --envs 8 --steps 1024 --run-dir members --quiet",
    "plan ppo CartPole-v1 --distribution fine --actors 2",
    "eval run --episodes 2",
    "eval fused --episodes 2 --json",
    "policies run",
    "export run --format stablehlo --out exported",
    "plot run coarse --out curves.png",
    "completion bash",
):
    status = main(text.split())
    assert status == 0, (text, status)
from runnel.cli import pages
assert "step size of the optimiser" in pages.text("reference-algorithms#ppo")
assert "class Discrete" in pages.text("reference-python")
print(runnel.load("run@best").act(np.zeros(4, np.float32)))
assert Path("curves.png").stat().st_size > 1000
for run in ("run", "fused", "coarse", "members"):
    report = Path(run, "report.html").read_text()
    assert "</html>" in report and run in report, run

command = [sys.executable, "-m", "runnel", "dash", ".", "--port", "0"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dash:
    address = re.search(r"(http://\\S+/)#", dash.stdout.readline())[1]
    read = lambda path: urllib.request.urlopen(address + path, timeout=60).read().decode()
    assert "page/dash.js" in read("")
    assert "comparePage" in read("page/dash.js")
    assert all(f'"{run}"' in read("api/runs") for run in ("run", "fused", "coarse", "members"))
    dash.send_signal(signal.SIGINT)
assert dash.returncode == 0, dash.returncode
"""
"""What is done with it: everything that a first hour needs, and nothing of another extra than `dash`."""


def build(directory: Path) -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (source,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return source, wheel


def tracked() -> set[str]:
    """The files of the checkout that are published: no links, and nothing that begins with a dot."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {
        name
        for name in listed.splitlines()
        if name[0] != "." and (ROOT / name).exists() and not (ROOT / name).is_symlink()
    }


def missing(source: Path, wheel: Path) -> list[str]:
    """Files of the checkout that the two lack: the source distribution has all, the wheel the package."""
    with tarfile.open(source) as packed:
        in_source = {name.partition("/")[2] for name in packed.getnames()}
    with zipfile.ZipFile(wheel) as packed:
        in_wheel = set(packed.namelist())
    files = tracked()
    package = {name for name in files if name.startswith(("runnel/", "hide_and_seek/"))}
    return [f"{source.name}: {name}" for name in sorted(files - in_source)] + [
        f"{wheel.name}: {name}" for name in sorted(package - in_wheel)
    ]


def install(wheel: Path, directory: Path, interpreter: str, libraries: str) -> Path:
    """An environment that has the wheel with the extra `dash`, and what these need; the path of its Python.

    `libraries`: the `pinned` versions, the `newest` ones, or those `here`, in this Python's environment.
    """
    subprocess.run([interpreter, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if libraries == "here":
        # As a plain line, it adds the directory, and not the checkouts that are installed in it.
        borrowed = directory.joinpath(*Path(sysconfig.get_path("purelib")).parts[-3:], "borrowed.pth")
        borrowed.write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    else:
        pinned = ["-c", ROOT / "constraints.txt"] if libraries == "pinned" else []
        subprocess.run([*pip, *pinned, f"{wheel}[dash]"], check=True)
    return python


def use(python: Path, directory: Path) -> dict[str, object]:
    """Trains, evaluates, plots and acts in an empty directory; the result of the training."""
    directory.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([python, "-c", USE], cwd=directory, env={**environ, "HOME": str(directory)}, check=True)
    return json.loads((directory / "run" / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters to try it with")
    libraries = parser.add_mutually_exclusive_group()
    libraries.add_argument("--newest", action="store_true", help="take the newest libraries, whatever is pinned")
    libraries.add_argument("--offline", action="store_true", help="take the libraries of this Python's environment")
    args = parser.parse_args()
    chosen = "newest" if args.newest else "here" if args.offline else "pinned"
    if args.offline and args.python != [sys.executable]:
        parser.error("--offline takes the libraries of this Python, which are for no other --python")
    with tempfile.TemporaryDirectory() as temporary:
        source, wheel = build(Path(temporary) / "dist")
        lacking = missing(source, wheel)
        if lacking:
            raise SystemExit("missing from what is published:\n" + "\n".join(lacking))
        for number, interpreter in enumerate(args.python):
            place = Path(temporary) / str(number)
            result = use(install(wheel, place / "venv", interpreter, chosen), place / "work")
            size_kb = wheel.stat().st_size / 1000
            print(f"{interpreter}: {wheel.name}, {size_kb:,.0f} kB, libraries: {chosen}")
            print(f"{result['status']} after {result['env_steps']:,} steps", flush=True)


if __name__ == "__main__":
    main()
