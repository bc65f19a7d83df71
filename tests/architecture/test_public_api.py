"""What is public, written out by hand: a name that goes or changes breaks users, so it breaks a test first."""

from __future__ import annotations

import importlib.resources
import inspect
import tomllib
from typing import Any

import pytest

import contract_tests
import durable_queue
import durable_queue.testing
import durable_queue_sqlite
from durable_queue import DurableQueue, QueueClock, QueueStorage, RetryPolicy, TaskContext, TaskGraph
from durable_queue_sqlite import SqliteQueueStorage
from tests.architecture.sources import PACKAGES, ROOT, files, module_name

DURABLE_QUEUE = {
    *("DurableQueue", "QueueStorage", "MemoryQueueStorage", "StoredTask", "TaskStatus", "TaskFailure"),
    *("RetryPolicy", "DependencyFailurePolicy", "TaskContext", "TaskGraph", "QueueClock", "SystemQueueClock"),
    *("FakeQueueClock", "RunState", "DrainResult", "Subscription", "Save", "Update", "Delete"),
    *("QueueEvent", "TaskEnqueued", "TaskStarted", "TaskRetryScheduled", "TaskCompleted", "TaskFailed"),
    *("TaskCancelled", "TaskHandedOff", "TaskProgress", "QueueStorageFailure", "EventsMissed"),
    *("DurableQueueError", "QueueStateError", "QueueClosedError", "QueueInUseError", "TaskStateError"),
    *("TaskNotFoundError", "TaskAlreadyExistsError", "UnknownTaskTypeError", "DuplicateTaskTypeError"),
    *("PayloadError", "DependencyCycleError", "DependencyFailedError", "TaskCancelledError"),
    *("TaskInterruptedError", "TaskExpiredError", "TaskTimeoutError", "HandOffError", "HandOffExpiredError"),
    *("StorageError", "CorruptRecordError", "SchemaTooNewError"),
}
TESTING = {
    *("FAKE_START", "OPERATIONS", "WRITES", "CollectedEvents", "FakeQueueClock", "FlakyStorage", "Gate"),
    *("advance", "collect_events", "crash", "run_until_idle"),
}
CONTRACT_TESTS = {"Damage", "OpenStorage", "QueueStorageContract", "make_task"}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (durable_queue, DURABLE_QUEUE),
        (durable_queue.testing, TESTING),
        (durable_queue_sqlite, {"SqliteQueueStorage"}),
        (contract_tests, CONTRACT_TESTS),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_public_names_are_these(module: Any, names: set[str]) -> None:
    """The public names of each package, sorted, each of them there and documented."""
    assert set(module.__all__) == names
    assert len(module.__all__) == len(names)
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert (value.__doc__ or "").strip(), f"{name} has no docstring"


@pytest.mark.parametrize("module", ["durable_queue", "durable_queue_sqlite", "contract_tests"])
def test_the_packages_say_that_they_are_typed(module: str) -> None:
    """Type checkers of users read the annotations: each package has its marker."""
    assert importlib.resources.files(module).joinpath("py.typed").is_file()


def test_the_wheel_holds_every_package() -> None:
    """A package that pyproject.toml does not list works here and is missing where it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = {
        module_name(file) for package in PACKAGES for file in files(package) if file.name == "__init__.py"
    }

    assert set(project["tool"]["setuptools"]["packages"]) == packages


def parameters(function: Any) -> str:
    """The parameters of a function as one writes them, without annotations and defaults."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(name.startswith("*") for name in names):
            names.append("*")
        names.append(prefix + parameter.name)
    return ", ".join(names)


SIGNATURES = {
    DurableQueue.__init__: (
        "storage, *, clock, max_concurrent_tasks, storage_retry_delay, random_fraction, id_generator, "
        "max_interruptions, converter, stop_grace, retention"
    ),
    DurableQueue.register: (
        "task_class, handler, *, type, retry_policy, retry_if, retry_delay, timeout, rerun_interrupted"
    ),
    DurableQueue.handler: "task_class, **options",
    DurableQueue.enqueue: "task, **options",
    DurableQueue.enqueue_all: "tasks, **options",
    DurableQueue.enqueue_chain: "tasks, **options",
    DurableQueue.enqueue_graph: "graph",
    DurableQueue.start: "*, paused",
    DurableQueue.pause: "",
    DurableQueue.resume: "",
    DurableQueue.stop: "*, grace",
    DurableQueue.close: "*, grace",
    DurableQueue.drain: "*, within, timeout",
    DurableQueue.wait: "task_id, *, timeout",
    DurableQueue.cancel: "task_id, *, force",
    DurableQueue.cancel_group: "group",
    DurableQueue.retry: "task_id, *, retry_policy, dependents",
    DurableQueue.delete: "task_id",
    DurableQueue.purge: "*, statuses, older_than",
    DurableQueue.get_task: "task_id",
    DurableQueue.get_tasks: "*, status, group, limit, after",
    DurableQueue.counts: "",
    DurableQueue.complete_hand_off: "task_id, *, reference, result",
    DurableQueue.fail_hand_off: "task_id, error, *, reference",
    DurableQueue.hand_offs: "",
    DurableQueue.subscribe: "*event_types, buffer",
    TaskContext.wait_cancelled: "",
    TaskContext.hand_off: "reference, *, deadline",
    TaskContext.dependency_results: "",
    TaskGraph.add: "task, *, name, **options",
    RetryPolicy.none: "",
    RetryPolicy.fixed: "*, max_attempts, delay",
    RetryPolicy.exponential: "*, max_attempts, initial_delay, max_delay, jitter, jitter_factor",
    RetryPolicy.delay_after: "completed_attempts, random_fraction",
    QueueClock.now: "",
    QueueClock.monotonic: "",
    QueueClock.call_at: "when, callback",
    QueueClock.call_later: "delay, callback",
    SqliteQueueStorage.open: "path, *, synchronous",
    SqliteQueueStorage.__init__: "path, *, synchronous",
    QueueStorage.save: "task",
    QueueStorage.get: "task_id",
    QueueStorage.update: "task",
    QueueStorage.delete: "task_id",
    QueueStorage.get_pending: "",
    QueueStorage.get_by_status: "status, *, limit, after",
    QueueStorage.get_next_ready: "now",
    QueueStorage.get_next_wake_at: "",
    QueueStorage.get_max_sequence: "",
    QueueStorage.get_all: "",
    QueueStorage.find_active_by_deduplication_key: "key",
    QueueStorage.get_waiting_dependents: "task_id",
    QueueStorage.get_by_group: "group, *, status",
    QueueStorage.apply: "changes",
    QueueStorage.get_ready: "now, limit, *, types",
    QueueStorage.get_many: "ids",
    QueueStorage.get_judgeable: "ids",
    QueueStorage.get_dependents: "task_id",
    QueueStorage.changes_elsewhere: "",
    QueueStorage.take_unreadable: "",
    QueueStorage.get_expired: "now, limit",
    QueueStorage.get_next_expiry_at: "",
    QueueStorage.count_by_status: "",
    QueueStorage.acquire_consumer: "",
    QueueStorage.release_consumer: "",
    QueueStorage.close: "",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_the_parameters_are_these(function: Any) -> None:
    """Names and order of parameters are what users and adapters write."""
    assert parameters(function) == SIGNATURES[function]


def test_an_adapter_needs_the_thirteen_methods_of_the_contract() -> None:
    """S13.8: these methods are abstract and no others."""
    assert QueueStorage.__abstractmethods__ == {
        *("save", "get", "update", "delete", "get_pending", "get_by_status", "get_next_ready"),
        *("get_next_wake_at", "get_max_sequence", "get_all", "find_active_by_deduplication_key"),
        *("get_waiting_dependents", "get_by_group"),
    }


def test_every_error_is_in_one_tree() -> None:
    """Everything that the package raises on purpose is caught by one base class."""
    errors = [getattr(durable_queue, name) for name in DURABLE_QUEUE if name.endswith("Error")]

    assert len(errors) == 21
    for error in errors:
        assert issubclass(error, durable_queue.DurableQueueError)


@pytest.mark.parametrize(
    ("error", "also"),
    [
        ("TaskNotFoundError", LookupError),
        ("UnknownTaskTypeError", LookupError),
        ("TaskAlreadyExistsError", ValueError),
        ("DuplicateTaskTypeError", ValueError),
        ("PayloadError", ValueError),
        ("DependencyCycleError", ValueError),
        ("TaskTimeoutError", TimeoutError),
        ("QueueClosedError", durable_queue.QueueStateError),
        ("HandOffExpiredError", durable_queue.HandOffError),
        ("CorruptRecordError", durable_queue.StorageError),
        ("SchemaTooNewError", durable_queue.StorageError),
    ],
)
def test_errors_are_also_what_they_look_like(error: str, also: type[Exception]) -> None:
    """An error can be caught by the built-in class or the group that a caller would expect."""
    assert issubclass(getattr(durable_queue, error), also)
