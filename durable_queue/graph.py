"""Graphs of tasks that are submitted together (S2.6)."""

from __future__ import annotations

from typing import Unpack

from durable_queue._engine.drafts import EnqueueOptions, Node, check_dependencies, known_options
from durable_queue._text import AUTOMATIC, check_name


class TaskGraph:
    """Named tasks and what they depend on, to be handed to `DurableQueue.enqueue_graph` as a whole.

    Nothing is stored by building a graph. The same graph can be submitted more than once; each time makes new tasks.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def add(self, task: object, *, name: str | None = None, **options: Unpack[EnqueueOptions]) -> str:
        """Add a task.

        Args:
            task: an instance of a registered class.
            name: what other nodes may depend on it by; None makes ``#1``, ``#2``, ...
            options: every option of `DurableQueue.enqueue`. `depends_on` takes names of this graph, also of nodes
                that are added later, and ids of stored tasks; at submit a name of the graph goes before an id.

        Returns:
            The node's name.

        Raises:
            TypeError: an option is not known, or `depends_on` is no list of texts.
            ValueError: the name is taken, is not usable text, or starts with ``#``.
        """
        if name is None:
            name = f"{AUTOMATIC}{len(self._nodes) + 1}"
        elif check_name(name, "name").startswith(AUTOMATIC):
            raise ValueError(f"names that start with {AUTOMATIC!r} are the automatic ones; choose another")
        if name in self._nodes:
            raise ValueError(f"the graph has a node named {name!r} already")
        known = known_options(options, EnqueueOptions)
        if "depends_on" in known:
            # Kept, because the graph can be submitted again and an iterator could be walked only once.
            known["depends_on"] = check_dependencies(known["depends_on"])
        self._nodes[name] = Node(name=name, task=task, options=known)
        return name

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"TaskGraph({len(self._nodes)} nodes)"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes in order of add."""
        return tuple(self._nodes.values())
