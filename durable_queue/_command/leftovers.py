"""Processes that outlived the command: what a killed run leaves behind must not work beside its own repetition."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from durable_queue._command.jobfile import ENVIRONMENT_PREFIX

TASK_VARIABLE = f"{ENVIRONMENT_PREFIX}TASK"
"""The variable that every process of a job inherits; its value is the id of the job's task."""

_PROC = Path("/proc")
_LOOK_INTERVAL = 0.05


async def end_leftovers(
    task_ids: Collection[str], *, grace: float = 2.0, patience: float = 10.0
) -> list[str]:
    """End every process that was started for these tasks; none of them may be running now.

    A process is known by its environment, which it keeps when its parent dies or it moves to another group. Systems
    without ``/proc`` tell nothing about that: there, nothing is found.

    Args:
        task_ids: the tasks.
        grace: seconds between the request to end and the end by force.
        patience: seconds after which a process that cannot be ended is left alone.

    Returns:
        The ids of the tasks that had processes left.
    """
    if sys.platform == "win32":
        return []
    loop = asyncio.get_running_loop()
    wanted = {f"{TASK_VARIABLE}={task_id}".encode(): task_id for task_id in task_ids}
    began = loop.time()
    asked: set[int] = set()
    found: set[str] = set()
    while leftovers := _processes(wanted):
        found.update(leftovers.values())
        waited = loop.time() - began
        if waited > patience:
            break
        for pid in leftovers:
            if waited > grace:
                _send(pid, signal.SIGKILL)
            elif pid not in asked:
                _send(pid, signal.SIGTERM)
        asked.update(leftovers)
        await asyncio.sleep(_LOOK_INTERVAL)
    return sorted(found)


def _processes(wanted: dict[bytes, str]) -> dict[int, str]:
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            # Gone meanwhile, or another user's.
            continue
        for variable in environment.split(b"\0"):
            if variable in wanted and int(folder.name) != os.getpid():
                found[int(folder.name)] = wanted[variable]
    return found


def _send(pid: int, number: int) -> None:
    # It may have gone meanwhile.
    with contextlib.suppress(OSError):
        os.kill(pid, number)
