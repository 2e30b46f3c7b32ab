"""`runnel doctor`: checks this machine, and says what is wrong with it and how to correct that."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runnel.errors import printable

if TYPE_CHECKING:
    from runnel.cli.doctor_checks import Check


def doctor_command(args: argparse.Namespace) -> int:
    found = []
    for check in examined(args.address):
        found.append(check)
        if not args.json:
            print(printable("\n".join(lines(check))), flush=True)
    wrong = sum(check.status == "wrong" for check in found)
    if args.json:
        print(json.dumps({"ok": not wrong, "checks": [dataclasses.asdict(check) for check in found]}, indent=2))
    else:
        print(f"\n{'nothing is wrong' if not wrong else f'{wrong} of {len(found)} checks found something wrong'}")
    return 1 if wrong else 0


def examined(address: str | None) -> Iterator[Check]:
    """All checks, one after another: the quick ones first."""
    from runnel.cli import doctor_checks as checks

    yield checks.python()
    yield checks.packages()
    yield checks.extras()
    yield checks.cores(*checks.count_cores())
    yield checks.memory(checks.free_bytes())
    yield checks.working_directory()
    yield checks.shared_memory()
    yield checks.memfd()
    yield checks.descriptors(*checks.descriptor_limits())
    yield checks.cache()
    yield checks.key()
    yield checks.ray(address)
    yield checks.workers()
    devices, platforms = checks.devices()
    yield devices
    yield checks.gpus(checks.gpu_nodes(), platforms)
    yield checks.pictures()


def lines(check: Check) -> list[str]:
    """A check in a line or two."""
    first = f"{check.status:<6} {check.name:<18} {check.found}"
    return [first, f"{'':<6} {'':<18} fix: {check.fix}"] if check.fix else [first]
