"""What the ledger asks of the worker: work in units that are decided, written, split and set aside."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from durable_queue._core.plan import Plan
from durable_queue.tasks import StoredTask


class Unit(Protocol):
    """Work of the worker that is decided and written as one.

    Attributes:
        claimed: the claimed records in it.
        failures: how often its write has failed in a row.
        is_aside: whether it is set aside.
    """

    claimed: list[StoredTask]
    failures: int
    is_aside: bool

    async def decide(self, plan: Plan) -> None:
        """Fill the plan; the same outcomes give the same records however often it is called."""

    def written(self) -> None:
        """Carry on: what was decided is stored."""

    def returned(self) -> None:
        """Take the work back: it could not be decided, and will be tried as part of a later unit."""

    def set_aside(self) -> None:
        """Try again later and alone; other work goes on (S13.3)."""

    def withdraw(self) -> None:
        """Forget that it was set aside: it has been written after all."""

    def split(self) -> Sequence[Unit]:
        """Return the same work in its smallest independent pieces; nothing of it has been written."""


class Worker(Protocol):
    """The worker's side of a step."""

    def has_work(self) -> bool:
        """Whether a unit is due now."""

    def next_unit(self, now: datetime, *, joint: bool) -> Unit:
        """Return the work that is due; the smallest piece unless `joint`."""

    def take_aside(self) -> Sequence[Unit]:
        """Return, and forget, the pieces that were set aside and are to be tried again now."""

    @property
    def has_aside(self) -> bool:
        """Whether some work is set aside."""

    def distrust(self) -> None:
        """Forget what was read ahead: a write has failed, or has perhaps been carried out."""

    def doubt(self) -> None:
        """Look at the storage anew: a write of somebody else may have been carried out."""

    def observe(self, plan: Plan) -> None:
        """See what has just been written, by whomever."""

    async def before_idle(self) -> None:
        """Read what is needed to know when to wake up."""

    def torn_down(self) -> None:
        """Claim nothing for a moment: the program may be at its end (S13.5)."""
