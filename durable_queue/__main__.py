"""The command line: ``python -m durable_queue run JOBS.toml``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: the words after the program's name; those of this process when None.

    Returns:
        The exit status; see ``docs/reference/command.md``.
    """
    options = _parser().parse_args(arguments)
    # Imported here, so that a wrong usage is answered without loading the queue.
    from durable_queue._command.run import run_file

    return run_file(options.file, options.db, options.jobs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="durable_queue", description="Durable tasks with dependencies, kept in SQLite."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run the shell jobs of a TOML file, and go on with them after any interruption",
        description="Run the shell jobs of a TOML file. Run the same command again after any interruption: "
        "finished jobs stay finished and the rest goes on.",
        epilog="Exit status: 0 every job completed; 1 a job failed or was cancelled; 2 nothing was run, because "
        "of the usage, the file or the database; 128 and the signal's number (130, 143) when stopped.",
    )
    run.add_argument("file", metavar="JOBS.toml", type=Path, help="the jobs; see docs/reference/command.md")
    run.add_argument(
        "--db",
        metavar="PATH",
        type=Path,
        help="where the run is kept (default: JOBS.queue.db beside JOBS.toml); logs go to PATH-logs",
    )
    run.add_argument(
        "--jobs", metavar="N", type=_slots, help="the most jobs at a time (default: the number of processors)"
    )
    return parser


MOST_JOBS = 1_000_000
"""The most jobs at a time."""


def _slots(text: str) -> int:
    try:
        slots = int(text)
    except ValueError:
        slots = 0
    if not 1 <= slots <= MOST_JOBS:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST_JOBS}, not {text!r}")
    return slots


if __name__ == "__main__":
    sys.exit(main())
