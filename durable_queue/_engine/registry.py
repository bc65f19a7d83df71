"""What is registered: task classes, their names, handlers and options (S2.2, S5)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import cattrs

from durable_queue._engine.arguments import check_function, check_kind
from durable_queue.clock import LONGEST_WAIT
from durable_queue.errors import DuplicateTaskTypeError, UnknownTaskTypeError
from durable_queue.outcomes import Interrupted
from durable_queue.retry import RetryPolicy
from durable_queue.serialization import PayloadCodec, task_type_name


@attrs.frozen(kw_only=True, eq=False)
class TaskType:
    """One registered type.

    Attributes:
        name: the stored type name.
        codec: between instances of its class and payloads.
        converter: encodes its results.
        handler: what runs it; None where tasks are only enqueued.
        is_plain: whether the handler is a plain function, run in a thread.
        retry_policy: for tasks that were enqueued without one.
        retry_if: whether an error may be retried; None for always.
        retry_delay: how long to wait after an error; None for the policy's wait.
        timeout: how long an attempt may take; None for ever.
        rerun_interrupted: whether an interruption uses up no attempt (S13.1).
    """

    name: str
    codec: PayloadCodec[Any]
    converter: cattrs.Converter
    handler: Callable[..., Any] | None
    is_plain: bool
    retry_policy: RetryPolicy
    retry_if: Callable[[BaseException], bool] | None
    retry_delay: Callable[[BaseException], timedelta | None] | None
    timeout: timedelta | None
    rerun_interrupted: bool

    def may_retry(self, error: BaseException) -> bool:
        """Ask `retry_if`; one that raises means no (S5.2)."""
        if self.retry_if is None:
            return True
        try:
            return bool(self.retry_if(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a faulty predicate must not cost the task its outcome
            return False

    def delay_for(self, error: BaseException) -> timedelta | None:
        """Ask `retry_delay`; None where the policy's wait holds, also when it raises or its answer is unusable."""
        if self.retry_delay is None:
            return None
        try:
            delay = self.retry_delay(error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # noqa: BLE001 - a faulty resolver must not cost the task its outcome
            return None
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= LONGEST_WAIT:
            return None
        return delay


class Registry:
    """The registered types of one queue, by name and by class."""

    def __init__(self, converter: cattrs.Converter, max_interruptions: int | None) -> None:
        self.converter = converter
        self._max_interruptions = max_interruptions
        self._by_name: dict[str, TaskType] = {}
        self._by_class: dict[type, TaskType] = {}

    def add(
        self,
        task_class: type,
        handler: Callable[..., Any] | None,
        *,
        type_: str | None,
        retry_policy: RetryPolicy | None,
        retry_if: Callable[[BaseException], bool] | None,
        retry_delay: Callable[[BaseException], timedelta | None] | None,
        timeout: timedelta | None,
        rerun_interrupted: bool,
    ) -> None:
        """Register a class; see `DurableQueue.register`."""
        name = task_type_name(task_class, type_)
        if name in self._by_name:
            raise DuplicateTaskTypeError(f"the type {name!r} is registered already")
        if task_class in self._by_class:
            raise DuplicateTaskTypeError(
                f"{task_class.__qualname__} is registered already, as {self._by_class[task_class].name!r}"
            )
        check_function(handler, "handler")
        check_function(retry_if, "retry_if")
        check_function(retry_delay, "retry_delay")
        check_kind(retry_policy, RetryPolicy, "retry_policy", "a RetryPolicy")
        if handler is not None and not _takes_two(handler):
            raise TypeError("handler must take two arguments: handler(task, context)")
        if timeout is not None:
            if not isinstance(timeout, timedelta):
                raise TypeError("timeout must be a timedelta")
            if timeout <= timedelta(0):
                raise ValueError("timeout must be above zero")
        task_type = TaskType(
            name=name,
            codec=PayloadCodec(self.converter, task_class),
            converter=self.converter,
            handler=handler,
            is_plain=handler is not None and not _is_coroutine_function(handler),
            retry_policy=retry_policy or RetryPolicy.none(),
            retry_if=retry_if,
            retry_delay=retry_delay,
            timeout=timeout,
            rerun_interrupted=rerun_interrupted,
        )
        self._by_name[name] = task_type
        self._by_class[task_class] = task_type

    def of(self, task: object) -> TaskType:
        """Return the type of an object that is to be enqueued.

        Raises:
            UnknownTaskTypeError: its class is not registered.
        """
        if isinstance(task, type):
            raise UnknownTaskTypeError(f"{task.__qualname__} is a class; enqueue an instance of it")
        found = self._by_class.get(type(task))
        if found is None:
            raise UnknownTaskTypeError(
                f"{type(task).__qualname__} is not registered; call queue.register({type(task).__qualname__}, handler)"
            )
        return found

    def named(self, name: str) -> TaskType | None:
        """Return the type of a stored task, or None."""
        return self._by_name.get(name)

    def interruption_of(self, name: str) -> Interrupted:
        """Return how an interruption counts for a type name (S7.2, S13.1)."""
        found = self._by_name.get(name)
        return Interrupted(
            uses_attempt=found is None or not found.rerun_interrupted, most=self._max_interruptions
        )


def _is_coroutine_function(handler: Callable[..., Any]) -> bool:
    return (
        asyncio.iscoroutinefunction(handler)
        or inspect.iscoroutinefunction(handler)
        or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004 - the method itself is looked at
    )


def _takes_two(handler: Callable[..., Any]) -> bool:
    try:
        inspect.signature(handler).bind(None, None)
    except ValueError:
        # Some builtins do not tell.
        return True
    except TypeError:
        return False
    return True
