"""Child processes: one per attempt, each at the head of its own tree, which ends as a whole."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import IO

_LOOK_INTERVAL = 0.02
_KILL_PATIENCE = 0.3
"""Seconds for what was killed to be gone."""

_PROC = Path("/proc")
_OWN_STATE = _PROC / "self" / "stat"


class NotStartedError(Exception):
    """The program could not be started; the text says why."""


class Processes:
    """Runs child processes and knows those that are alive.

    A child gets no input, writes where it is told, and leads a session of its own (on Windows a process group): a
    Ctrl-C in the terminal does not reach it, and it can be ended together with everything that it started.

    Args:
        grace: how long a tree has between the request to end and its end by force, after a time-out.
        cancel_grace: the same when the coroutine that awaits it is cancelled.
    """

    def __init__(
        self, *, grace: timedelta = timedelta(seconds=2), cancel_grace: timedelta = timedelta(seconds=0.6)
    ) -> None:
        self._grace = grace.total_seconds()
        self._cancel_grace = cancel_grace.total_seconds()
        self._alive: set[asyncio.subprocess.Process] = set()

    async def run(
        self,
        command: tuple[str, ...] | str,
        *,
        cwd: Path,
        env: Mapping[str, str],
        output: IO[bytes],
        timeout: timedelta | None,
    ) -> int:
        """Run a program to its end, and end what it leaves running in its group.

        Args:
            command: the program and its arguments, or a text for the shell.
            cwd: the folder that it runs in.
            env: its whole environment.
            output: the file that its output and its errors go to.
            timeout: how long it may take, or None.

        Returns:
            Its exit status; on POSIX the negative number of the signal that ended it.

        Raises:
            NotStartedError: the folder or the program is not there, or may not be used.
            TimeoutError: it took too long; its whole tree was ended.
        """
        process = await self._start(command, cwd, env, output)
        self._alive.add(process)
        grace = self._grace
        try:
            async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
                return await process.wait()
        except asyncio.CancelledError:
            grace = self._cancel_grace
            raise
        finally:
            try:
                await _end_tree(process, grace)
            finally:
                self._alive.discard(process)

    @property
    def count(self) -> int:
        """How many are alive."""
        return len(self._alive)

    def kill_now(self) -> None:
        """End every tree by force, without waiting; safe to call from a signal handler."""
        for process in list(self._alive):
            _kill_tree(process)

    async def _start(
        self, command: tuple[str, ...] | str, cwd: Path, env: Mapping[str, str], output: IO[bytes]
    ) -> asyncio.subprocess.Process:
        # The error of a missing folder looks like that of a missing program.
        if not cwd.is_dir():  # noqa: ASYNC240 - as quick as starting the program there, which blocks as well
            raise NotStartedError(f"there is no folder {str(cwd)!r} to run it in")
        try:
            if isinstance(command, str):
                return await asyncio.create_subprocess_shell(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                    creationflags=_CREATION_FLAGS,
                )
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=env,
                start_new_session=True,
                creationflags=_CREATION_FLAGS,
            )
        except FileNotFoundError:
            raise NotStartedError(f"command not found: {_program(command)!r}") from None
        except OSError as error:
            raise NotStartedError(f"cannot start {_program(command)!r}: {error.strerror or error}") from None


def describe_status(status: int) -> str:
    """Say how a program ended, for example ``exit status 3`` or ``ended by SIGKILL``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended by signal {-status}"


def _program(command: tuple[str, ...] | str) -> str:
    return "the shell" if isinstance(command, str) else command[0]


if sys.platform == "win32":
    _CREATION_FLAGS = subprocess.CREATE_NEW_PROCESS_GROUP

    async def _end_tree(process: asyncio.subprocess.Process, _: float) -> None:
        # Windows knows no request to end that a console program would hear, and finds a tree only by its living root.
        _kill_tree(process)
        await process.wait()

    def _kill_tree(process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False
            )

else:
    _CREATION_FLAGS = 0

    async def _end_tree(process: asyncio.subprocess.Process, grace: float) -> None:
        try:
            for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_PATIENCE)):
                if not _signal_group(process.pid, number) or await _is_gone(process.pid, patience):
                    break
        finally:
            # Also when this is cancelled itself.
            _kill_tree(process)
        await process.wait()

    async def _is_gone(group: int, patience: float) -> bool:
        """Wait until nothing of a group runs, for so many seconds; return whether that is so."""
        loop = asyncio.get_running_loop()
        end = loop.time() + patience
        # Nothing announces the end of a grandchild.
        while _signal_group(group, 0) and _anything_runs(group):
            if loop.time() >= end:
                return False
            await asyncio.sleep(_LOOK_INTERVAL)
        return True

    def _anything_runs(group: int) -> bool:
        # A process that has ended stays in its group until somebody collects it, and in many containers nobody
        # collects orphans. Only Linux tells the two apart.
        if not _OWN_STATE.exists():
            return True
        return any(_is_at_work(state, group) for state in _PROC.glob("[0-9]*/stat"))

    def _is_at_work(path: Path, group: int) -> bool:
        try:
            fields = path.read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False
        state, _, process_group = fields[:3]
        return int(process_group) == group and state not in (b"Z", b"X")

    def _kill_tree(process: asyncio.subprocess.Process) -> None:
        _signal_group(process.pid, signal.SIGKILL)

    def _signal_group(group: int, number: int) -> bool:
        """Send a signal to a process group; return whether anybody was there."""
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            # macOS says so of a group in which only an unreaped child is left, others of one that changed its user.
            return False
        return True
