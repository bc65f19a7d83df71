"""Rings and orders of named nodes (S2.6). Without recursion, for graphs of any depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from durable_queue.errors import DependencyCycleError


def dependencies_first(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Order nodes so that each comes after what it depends on; otherwise as given.

    Args:
        edges: for each node what it depends on; names that are no keys are ignored.

    Raises:
        DependencyCycleError: there is a ring; `cycle` holds its names, each depending on the next.
    """
    order: list[str] = []
    done: set[str] = set()
    for root in edges:
        # The path from the root, each node with the iterator over what it still has to look at.
        path = [root] if root not in done else []
        on_path = set(path)
        left = [iter(edges[name]) for name in path]
        while path:
            for dependency in left[-1]:
                if dependency in on_path:
                    raise DependencyCycleError(path[path.index(dependency) :])
                if dependency in edges and dependency not in done:
                    path.append(dependency)
                    on_path.add(dependency)
                    left.append(iter(edges[dependency]))
                    break
            else:
                name = path.pop()
                left.pop()
                on_path.discard(name)
                done.add(name)
                order.append(name)
    return order
