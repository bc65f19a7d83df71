"""Child processes: how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from durable_queue._command.leftovers import TASK_VARIABLE, end_leftovers
from durable_queue._command.process import NotStartedError, Processes, describe_status

Command = tuple[str, ...] | str

# Writes to the FIFO named by its argument and then stays until it is killed.
STAYS = "import signal, sys; open(sys.argv[1], 'w').write('x'); signal.pause()"
STAYS_STUBBORNLY = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {STAYS}"
# Starts its last argument in a process of its own and then does what the text before says.
PARENT = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[2:]]); exec(sys.argv[1])"


LONG = 20
"""Seconds that nothing here takes."""


class Pipe:
    """A FIFO through which a child says that it is there; writing to it never waits."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._end = os.open(path, os.O_RDWR)

    async def written(self) -> None:
        """Wait for a child to write, and take what it wrote."""
        await asyncio.to_thread(os.read, self._end, 1)

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Pipe]:
    """A FIFO for a child to say that it is there."""
    pipe = Pipe(tmp_path / "pipe")
    yield pipe
    pipe.close()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., asyncio.Task[int]]:
    """Start a program; its output goes to ``out``."""

    def start(
        command: Command,
        *,
        timeout: float | None = None,
        cwd: Path | None = None,
        grace: float = 0.3,
        cancel_grace: float = 0.3,
    ) -> asyncio.Task[int]:
        async def work() -> int:
            with (tmp_path / "out").open("ab", buffering=0) as output:
                return await Processes(
                    grace=timedelta(seconds=grace), cancel_grace=timedelta(seconds=cancel_grace)
                ).run(
                    command,
                    cwd=cwd or tmp_path,
                    env={**os.environ, TASK_VARIABLE: str(tmp_path)},
                    output=output,
                    timeout=None if timeout is None else timedelta(seconds=timeout),
                )

        return asyncio.create_task(work())

    return start


def python(code: str, *arguments: object) -> tuple[str, ...]:
    """Return the command that runs some code."""
    return (sys.executable, "-c", code, *map(str, arguments))


def alive(folder: Path) -> list[str]:
    """Return the processes that were started by this test and still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdigit()
                and f"{TASK_VARIABLE}={folder}".encode() in (entry / "environ").read_bytes()
            ):
                found.append(entry.name)
        except OSError:
            continue
    return found


@pytest.mark.asyncio
async def test_output_and_status(run: Callable[..., asyncio.Task[int]], tmp_path: Path) -> None:
    """Output and errors go to the log, input is empty, and the status is told."""
    code = "import sys; print(repr(sys.stdin.read()), flush=True); print('e', file=sys.stderr); sys.exit(3)"

    assert await run(python(code)) == 3
    assert (tmp_path / "out").read_text() == "''\ne\n"


@pytest.mark.asyncio
async def test_a_text_is_for_the_shell(run: Callable[..., asyncio.Task[int]], tmp_path: Path) -> None:
    """A text goes to the shell, in the folder that was asked for."""
    (tmp_path / "sub").mkdir()

    assert await run("pwd | tr a-z A-Z", cwd=tmp_path / "sub") == 0
    assert (tmp_path / "out").read_text() == f"{tmp_path / 'sub'}\n".upper()


@pytest.mark.asyncio
async def test_an_end_by_a_signal_is_told(run: Callable[..., asyncio.Task[int]]) -> None:
    """A program that a signal has ended says which."""
    status = await run("kill -9 $$")

    assert describe_status(status) == "ended by SIGKILL"
    assert describe_status(4) == "exit status 4"


@pytest.mark.asyncio
async def test_what_cannot_start(run: Callable[..., asyncio.Task[int]], tmp_path: Path) -> None:
    """A missing program, one that may not run, and a missing folder are told apart."""
    (tmp_path / "text").write_text("no program")

    with pytest.raises(NotStartedError, match=r"^command not found: 'no-such-program'$"):
        await run(("no-such-program", "x"))
    with pytest.raises(NotStartedError, match=r"cannot start .*text': Permission denied"):
        await run((str(tmp_path / "text"),))
    with pytest.raises(NotStartedError, match=r"there is no folder .*none' to run it in"):
        await run(("true",), cwd=tmp_path / "none")


@pytest.mark.asyncio
@pytest.mark.parametrize("stays", [STAYS, STAYS_STUBBORNLY])
async def test_a_timeout_ends_the_whole_tree(
    run: Callable[..., asyncio.Task[int]], pipe: Pipe, tmp_path: Path, stays: str
) -> None:
    """After the time-out neither the program nor what it started is alive, even if it ignores SIGTERM."""
    with pytest.raises(TimeoutError):
        await run(
            python(PARENT, "import signal; signal.pause()", stays, pipe.path), timeout=1, cancel_grace=LONG
        )

    await pipe.written()
    assert alive(tmp_path) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("stays", [STAYS, STAYS_STUBBORNLY])
async def test_a_cancellation_ends_the_whole_tree(
    run: Callable[..., asyncio.Task[int]], pipe: Pipe, tmp_path: Path, stays: str
) -> None:
    """S13.4: after a cancellation the whole tree is gone within a grace of its own, short of the queue's one second."""
    task = run(python(PARENT, "import signal; signal.pause()", stays, pipe.path), grace=LONG)
    await pipe.written()
    task.cancel()
    began = asyncio.get_running_loop().time()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() - began < LONG / 2
    assert alive(tmp_path) == []


@pytest.mark.asyncio
async def test_what_a_program_leaves_running_is_ended(
    run: Callable[..., asyncio.Task[int]], pipe: Pipe, tmp_path: Path
) -> None:
    """An attempt is over when its whole tree is over; its status is the program's own."""
    code = f"open({str(pipe.path)!r}).read(1)"

    assert await run(python(PARENT, code, STAYS, pipe.path)) == 0
    assert alive(tmp_path) == []


@pytest.mark.asyncio
async def test_leftovers_of_a_task_are_ended(tmp_path: Path) -> None:
    """Processes that were started for a task are asked to end, then killed; no others are.

    They are found by the task's id, in whatever session.
    """
    processes = {}
    for name, code in {"left": STAYS, "stubborn": STAYS_STUBBORNLY, "other": STAYS}.items():
        pipe = Pipe(tmp_path / name)
        processes[name] = await asyncio.create_subprocess_exec(
            *python(code, pipe.path),
            env={**os.environ, TASK_VARIABLE: f"{tmp_path}/{name}"},
            start_new_session=True,
        )
        await pipe.written()
        pipe.close()

    try:
        found = await end_leftovers(
            [f"{tmp_path}/left", f"{tmp_path}/stubborn", f"{tmp_path}/none"], grace=0.2, patience=LONG / 2
        )
        async with asyncio.timeout(LONG / 2):
            ended = [await processes[name].wait() for name in ("left", "stubborn")]

        assert found == [f"{tmp_path}/left", f"{tmp_path}/stubborn"]
        assert ended == [-signal.SIGTERM, -signal.SIGKILL]
        assert processes["other"].returncode is None
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
