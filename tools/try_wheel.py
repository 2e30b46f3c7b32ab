"""Builds what is published, installs the wheel where there is no checkout, and trains with it.

    make wheel
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
import sys
from pathlib import Path
import numpy as np
import runnel
from runnel.cli.main import main

assert Path(runnel.__file__).is_relative_to(sys.prefix), runnel.__file__
for text in (
    "list",
    "train ppo CartPole-v1 --distribution inline --steps 4096 --seed 1 --run-dir run --eval-every 2048 --quiet",
    "resume run --steps 6144 --quiet",
    "train reinforce CartPole-v1 --distribution coarse --actors 2 --steps 1024 --run-dir coarse --quiet",
    "eval run --episodes 2",
    "policies run",
    "plot run coarse --out curves.png",
):
    status = main(text.split())
    assert status == 0, (text, status)
print(runnel.load("run@best").act(np.zeros(4, np.float32)))
assert Path("curves.png").stat().st_size > 1000
"""


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
    package = {name for name in files if name.startswith("runnel/")}
    return [f"{source.name}: {name}" for name in sorted(files - in_source)] + [
        f"{wheel.name}: {name}" for name in sorted(package - in_wheel)
    ]


def install(wheel: Path, directory: Path, offline: bool) -> Path:
    """An environment that has the wheel, and what it needs; the path of its Python."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    python = directory / "bin" / "python"
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if offline:
        # As a plain line, it adds the directory, and not the checkouts that are installed in it.
        borrowed = directory.joinpath(*Path(sysconfig.get_path("purelib")).parts[-3:], "borrowed.pth")
        borrowed.write_text(sysconfig.get_path("purelib") + "\n")
        subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)
    else:
        subprocess.run([*pip, "-c", ROOT / "constraints.txt", wheel], check=True)
    return python


def use(python: Path, directory: Path) -> dict[str, object]:
    """Trains, evaluates, plots and acts in an empty directory; the result of the training."""
    directory.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([python, "-c", USE], cwd=directory, env={**environ, "HOME": str(directory)}, check=True)
    return json.loads((directory / "run" / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offline", action="store_true", help="take all other packages from this Python's environment")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        source, wheel = build(directory / "dist")
        lacking = missing(source, wheel)
        if lacking:
            raise SystemExit("missing from what is published:\n" + "\n".join(lacking))
        result = use(install(wheel, directory / "venv", args.offline), directory / "work")
        size_kb = wheel.stat().st_size / 1000
        print(f"{wheel.name}, {size_kb:,.0f} kB: {result['status']} after {result['env_steps']:,} steps")


if __name__ == "__main__":
    main()
