"""The programs behind pack_docs.toml: checksums, an archive, and a report that checks one against the other.

A job can be killed at any moment and started again. So each of them writes under another name and renames the file
when it is whole: what exists is complete, and doing it twice does no harm.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished"


def checksums(folder: Path, listing: Path) -> None:
    """Write the SHA-256 of every file of a folder to a listing."""
    lines = [f"{_digest(path.read_bytes())}  {path.as_posix()}\n" for path in _files(folder)]
    with _whole(listing) as unfinished:
        unfinished.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} files listed in {listing}")


def archive(folder: Path, target: Path) -> None:
    """Compress every file of a folder into one archive."""
    with _whole(target) as unfinished, tarfile.open(unfinished, "w:gz") as tar:
        for path in _files(folder):
            tar.add(path, path.as_posix())
            print(path.as_posix(), flush=True)


def report(listing: Path, target: Path, page: Path) -> None:
    """Check the archive against the listing and say how much it saves."""
    expected: dict[str, str] = {}
    for line in listing.read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ", 1)
        expected[name] = digest
    found: dict[str, str] = {}
    size = 0
    with tarfile.open(target) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None
            data = content.read()
            found[member.name] = _digest(data)
            size += len(data)
    differing = sorted({name for name, _ in expected.items() ^ found.items()})
    if differing:
        sys.exit(f"the archive and the listing differ in: {', '.join(differing)}")
    packed = target.stat().st_size
    with _whole(page) as unfinished:
        unfinished.write_text(
            f"{len(found)} files, {size} bytes, packed into {packed} ({packed / max(size, 1):.0%})\n",
            encoding="utf-8",
        )
    print(page.read_text(encoding="utf-8"), end="")


def tidy(folder: Path) -> None:
    """Remove what killed jobs have left unfinished."""
    for path in folder.glob(f"*{UNFINISHED}"):
        path.unlink()
        print(f"removed {path}")


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    yield unfinished
    unfinished.replace(path)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "checksums": checksums,
        "archive": archive,
        "report": report,
        "tidy": tidy,
    }
    programs[sys.argv[1]](*map(Path, sys.argv[2:]))
