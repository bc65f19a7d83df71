"""Measure, and print tables."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from tests.benchmarks import measuring, report
from tests.benchmarks.measuring import Table

MODULES = ("throughput", "latency", "edges", "scale")


def main() -> int:
    """Measure what is named and print it as it comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODULES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one round, few tasks: does it run at all?")
    parser.add_argument("--folder", type=Path, help="where the files go; the checkout by default")
    parser.add_argument("--write", action="store_true", help=f"put the tables into {report.PAGE.name}")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MODULES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}")
    if arguments.quick and arguments.write:
        parser.error("--quick measures too little to be written down")
    if arguments.folder is not None:
        measuring.use_folder(arguments.folder)
    machine = measuring.machine()
    print(*(f"- {fact}" for fact in machine), sep="\n", end="\n\n")
    if measuring.file_system() == "tmpfs":
        print("This folder is in memory, where fsync does nothing; name another one by --folder.\n")
    every: list[Table] = []
    for name in arguments.names or MODULES:
        # Loaded when its turn comes: `throughput` is the only one that needs the other queues.
        tables: list[Table] = []
        for table in importlib.import_module(f"tests.benchmarks.{name}").tables(arguments.quick):
            print(report.markdown(table), end="\n\n", flush=True)
            tables.append(table)
        if arguments.write:
            report.write(name, machine, tables)
        every += tables
    print(report.summary(every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
