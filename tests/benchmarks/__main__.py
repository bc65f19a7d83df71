"""Measure, and print tables: ``python -m tests.benchmarks [--quick] [--folder FOLDER] [NAME ...]``."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import measuring
from tests.benchmarks.measuring import Table

MODULES = ("throughput", "latency", "edges", "scale")


def tables(names: list[str], quick: bool) -> Iterator[Table]:
    """Measure what is named, all by default; a module is loaded when its turn comes."""
    for name in names or MODULES:
        yield from importlib.import_module(f"tests.benchmarks.{name}").tables(quick)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one round, few tasks: does it run at all?")
    parser.add_argument("--folder", type=Path, help="where the files go; the checkout by default")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if arguments.folder is not None:
        measuring.use_folder(arguments.folder)
    for table in tables(arguments.names, arguments.quick):
        print(table, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
