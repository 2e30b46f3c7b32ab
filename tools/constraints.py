"""Rewrites the generated part of constraints.txt.

    make constraints PYTHONS="python3.11 python3.12 python3.13"

For each interpreter, pip resolves `.[dev]` (and installs nothing) under the choices made by hand at the top
of constraints.txt. A package that comes out alike everywhere is pinned once; one that differs is pinned per
Python version, with a marker.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

CONSTRAINTS = pathlib.Path(__file__).resolve().parent.parent / "constraints.txt"
GENERATED = "# ---- below: written by `make constraints`; choices by hand stand above ----\n"


def resolve(python: str, choices: str) -> tuple[str, dict[str, str]]:
    """Returns the interpreter's version ("3.11") and what pip would install there, as {name: version}."""
    with tempfile.TemporaryDirectory() as scratch:
        venv, report, constraint = (pathlib.Path(scratch, name) for name in ("venv", "report", "choices"))
        constraint.write_text(choices)
        subprocess.run([python, "-m", "venv", venv], check=True)
        pip_install = [venv / "bin" / "pip", "install", "-qq", "--dry-run", "--ignore-installed"]
        target = ["-c", constraint, "-e", f"{CONSTRAINTS.parent}[dev]"]
        subprocess.run([*pip_install, "--report", report, *target], check=True)
        resolved = json.loads(report.read_text())
    pins = {}
    for item in resolved["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        pins[name] = item["metadata"]["version"].split("+")[0]  # a local build (+cpu) is the same release
    del pins["runnel"]
    return resolved["environment"]["python_version"], pins


def render(resolutions: list[tuple[str, dict[str, str]]], chosen: set[str]) -> str:
    """One line per package, with markers where the Python versions, oldest first, disagree."""
    pythons = [python for python, _ in resolutions]
    lines = []
    for name in sorted({name for _, pins in resolutions for name in pins} - chosen):
        versions = [pins.get(name) for _, pins in resolutions]
        if len({version for version in versions if version}) == 1:
            lines.append(f"{name}=={next(filter(None, versions))}")
            continue
        for index, version in enumerate(versions):
            # The first pin also holds for older Pythons, the last for newer ones.
            bounds = [f'python_version >= "{python}"' for python in pythons[index : index + 1] if index]
            bounds += [f'python_version < "{python}"' for python in pythons[index + 1 : index + 2]]
            if version:
                lines.append(f"{name}=={version}; {' and '.join(bounds)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    choices = CONSTRAINTS.read_text().split(GENERATED)[0]
    chosen = {re.split(r"[=<>~! ;]", line)[0] for line in choices.splitlines() if line and line[0] != "#"}
    resolutions = [resolve(python, choices) for python in sys.argv[1:]]
    resolutions.sort(key=lambda resolution: [int(part) for part in resolution[0].split(".")])
    CONSTRAINTS.write_text(choices + GENERATED + render(resolutions, chosen))


if __name__ == "__main__":
    main()
