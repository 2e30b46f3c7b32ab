"""Called by hatchling when a wheel is built: puts the pages of docs/ into it, which `runnel help PAGE` prints.

Only the pages: pictures, which a terminal does not show, are several times as large.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout has them
            return
        for page in sorted(Path(self.root, "docs").glob("*.md")):
            build_data["force_include"][str(page)] = f"runnel/pages/{page.name}"
