"""A sink: the metrics of a run as a table of comma-separated values."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.recording.sinks import Record


class CsvSink:
    """A table with a column for each name, in the order in which they appear. It continues a table that exists."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.rows: list[Mapping[str, Any]] = []
        if self.path.exists():
            with self.path.open(newline="") as file:
                self.rows += csv.DictReader(file)
        self.columns = list(self.rows[0]) if self.rows else []

    def write(self, record: Record) -> None:
        self.rows.append(record)
        columns = list(dict.fromkeys([*self.columns, *record]))
        if columns != self.columns:  # rows before this one have no value there
            self._write_all(columns)
        else:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, columns).writerow(record)

    def rewind(self, env_steps: int) -> None:
        self.rows = [row for row in self.rows if int(row["env_steps"]) <= env_steps]
        self._write_all(self.columns)

    def close(self) -> None:
        """Every record is in the file already."""

    def _write_all(self, columns: list[str]) -> None:
        part = Path(f"{self.path}.part")  # replaces the table once it is whole
        with part.open("w", newline="") as file:
            table = csv.DictWriter(file, columns)
            table.writeheader()
            table.writerows(self.rows)
        part.replace(self.path)
        self.columns = columns


def beside(run_dir: Path, config: Mapping[str, Any]) -> CsvSink:
    """The table `RUN_DIR.csv`."""
    return CsvSink(f"{run_dir}.csv")
