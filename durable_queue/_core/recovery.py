"""What becomes of the tasks that were running when their process ended (S7.1, S7.2)."""

from __future__ import annotations

from collections.abc import Callable

from durable_queue._core.plan import Decision, GetPage, Page, Plan
from durable_queue._core.settlement import settle
from durable_queue._core.verdicts import conclude
from durable_queue.outcomes import Interrupted
from durable_queue.tasks import StoredTask, TaskStatus

RECOVERY_BATCH = 100


def recover_batch(
    plan: Plan,
    after: StoredTask | None,
    *,
    rule_for: Callable[[str], Interrupted],
    random_fraction: Callable[[], float],
) -> Decision[Page]:
    """Conclude the next interrupted tasks.

    Args:
        plan: takes the records and events.
        after: the last record of the batch before.
        rule_for: how an interruption counts for a type name.
        random_fraction: the source of jitter.

    Returns:
        The records that were looked at, as they were before, handed-off ones included.
    """
    page: Page = yield GetPage(TaskStatus.RUNNING, RECOVERY_BATCH, after)
    ended = []
    for task in page.tasks:
        # A call in the same step may have ended it, or asked it to stop.
        if task.status is TaskStatus.RUNNING and task.hand_off_reference is None:
            record = conclude(plan, task, rule_for(task.type), random_fraction=random_fraction)
            if record.status.is_terminal:
                ended.append(record)
    yield from settle(plan, ended)
    return page
