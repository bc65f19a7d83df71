"""What every measurement needs: rows, rounds taken in turn, folders on a real disk, and what the machine is."""

from __future__ import annotations

import gc
import os
import platform
import resource
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
ROUNDS: Final = 5
"""How often a thing is measured, so that a median of it means something."""

_place = ROOT / "build"  # git ignores it and `make clean` removes it


@attrs.frozen(kw_only=True)
class Row:
    """One line of a table: what was measured, against what, and what is asked.

    Attributes:
        measure: what was measured.
        ours: the figure, with its unit.
        against: what it is compared with, with its figure.
        ratio: ours/other in the direction of `wanted`; None where a bound is absolute or none is asked.
        wanted: the bound in words; empty where none is asked.
        met: whether the figure is within the bound.
    """

    measure: str
    ours: str
    against: str
    ratio: float | None
    wanted: str
    met: bool


@attrs.frozen(kw_only=True)
class Table:
    """Rows that were measured under the same conditions.

    Attributes:
        title: what they have in common.
        rows: the rows.
        notes: sentences about how they came about.
    """

    title: str
    rows: list[Row]
    notes: tuple[str, ...] = ()


def median(values: Sequence[float]) -> float:
    """Return the middle of some values."""
    return statistics.median(values)


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that so many per cent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def rounds(quick: bool) -> int:
    """Return how often to measure."""
    return 1 if quick else ROUNDS


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def alternate(rounds: int, **runs: Callable[[], float]) -> dict[str, list[float]]:
    """Measure several things in turn, round by round, so that a slow moment of the machine meets them all.

    Args:
        rounds: how often each is measured.
        runs: by name, what measures a thing once and returns its figure.

    Returns:
        The figures of each, by the same names.
    """
    figures: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        first = turn % len(names)
        # Another one begins each time: nobody is always the one who runs after the slowest.
        for name in names[first:] + names[:first]:
            gc.collect()
            figures[name].append(runs[name]())
    return figures


def use_folder(folder: Path) -> None:
    """Put what `fresh_folder` makes below this folder from now on."""
    global _place  # noqa: PLW0603 - one place for a whole run, known to every module
    _place = folder


@contextmanager
def fresh_folder() -> Iterator[Path]:
    """Give an empty folder on the disk that is measured, and remove it afterwards."""
    _place.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=_place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def fsync_time(count: int = 100) -> float:
    """Return the seconds that appending 4 kB to a file and an fsync of it take, as a median."""
    block = bytes(4096)
    with fresh_folder() as folder, (folder / "file").open("wb", buffering=0) as file:

        def append() -> None:
            file.write(block)
            os.fsync(file.fileno())

        return median([seconds(append) for _ in range(count)])


def commit_time(count: int = 100, *, synchronous: str = "FULL") -> float:
    """Return the seconds that plain `sqlite3` takes to commit one small row, as a median."""

    def commit() -> None:
        database.execute("INSERT INTO rows VALUES (?)", ("x" * 100,))

    with (
        fresh_folder() as folder,
        closing(sqlite3.connect(folder / "file", isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = WAL").fetchall()
        database.execute(f"PRAGMA synchronous = {synchronous}").fetchall()
        database.execute("CREATE TABLE rows (text TEXT)")
        return median([seconds(commit) for _ in range(count)])


def peak_memory() -> int:
    """Return the largest amount of memory that this process has had, in bytes."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def resident_memory() -> int:
    """Return the amount of memory that this process has now, in bytes; only on Linux."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def at_least(bound: float, *, measure: str, ours: str, against: str, ratio: float) -> Row:
    """Return a row whose ratio must reach a bound."""
    return Row(
        measure=measure,
        ours=ours,
        against=against,
        ratio=ratio,
        wanted=f"at least {bound:g} x",
        met=ratio >= bound,
    )


def at_most(bound: float, *, measure: str, ours: str, against: str, ratio: float) -> Row:
    """Return a row whose ratio must not exceed a bound."""
    return Row(
        measure=measure,
        ours=ours,
        against=against,
        ratio=ratio,
        wanted=f"at most {bound:g} x",
        met=ratio <= bound,
    )


def per_second(rate: float) -> str:
    """Return a rate as it stands in a table."""
    return f"{rate:,.0f} /s"


def duration(time: float) -> str:
    """Return seconds as they stand in a table."""
    if time < 0.001:
        return f"{time * 1e6:.0f} us"
    return f"{time * 1e3:.1f} ms" if time < 1 else f"{time:.2f} s"


def machine() -> list[str]:
    """Say what the figures were taken on: processor, Python, SQLite, kernel, disk."""
    full, normal = commit_time(), commit_time(synchronous="NORMAL")
    return [
        f"{_processor()}, {os.cpu_count()} cores",
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
        f"{platform.system()} {platform.release().partition('-')[0]}, file system {file_system()}",
        f"fsync after 4 kB: {duration(fsync_time())}",
        f"commit of one row by sqlite3: {duration(full)} with FULL, {duration(normal)} with NORMAL",
    ]


def file_system() -> str:
    """Return the kind of file system that is measured, as far as Linux tells."""
    place = str(_place.resolve())
    kind, longest = "unknown", -1
    mounts = Path("/proc/mounts")
    for line in mounts.read_text("utf-8").splitlines() if mounts.exists() else []:
        _, point, mounted, *_ = line.split()
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:
            kind, longest = mounted, len(point)
    return kind


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    for line in information.read_text("utf-8").splitlines() if information.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
