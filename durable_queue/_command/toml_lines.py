"""Where in a TOML text a table or a key stands: what `tomllib` does not tell about a text that it accepts."""

from __future__ import annotations

import re
import tomllib


class TableLines:
    """Finds the lines of the tables of one array, ``[[name]]``, in a text that is valid TOML.

    Args:
        text: the whole file.
        name: the array's name.
        count: how many tables `tomllib` found in it.
    """

    def __init__(self, text: str, name: str, count: int) -> None:
        self._lines = text.split("\n")
        self._name = name
        header = re.compile(rf"\s*\[\[\s*{_key_pattern(name)}\s*\]\]")
        starts = [index for index, line in enumerate(self._lines) if header.match(line)]
        if len(starts) != count:
            starts = [index for index in starts if self._begins_statement(index)]
        # Tables that are written inline have no header of their own.
        self._starts = starts if len(starts) == count else []

    def table(self, position: int) -> int | None:
        """Return the line, from 1, of a table's header, or None when it cannot be told."""
        return self._starts[position] + 1 if self._starts else None

    def key(self, position: int, key: str) -> int | None:
        """Return the line, from 1, of a key in a table, or the table's own when the key's cannot be told."""
        if not self._starts:
            return None
        start = self._starts[position]
        after = self._starts[position + 1] if position + 1 < len(self._starts) else len(self._lines)
        name, wanted = _key_pattern(self._name), _key_pattern(key)
        form = re.compile(rf"\s*(?:{wanted}\s*[=.]|\[\s*{name}\s*\.\s*{wanted}\s*[\].])")
        for index in range(start + 1, after):
            if form.match(self._lines[index]) and self._begins_statement(index):
                return index + 1
        return start + 1

    def _begins_statement(self, index: int) -> bool:
        # A line of a multi-line string or array can look like a statement. It is one exactly when what stands before
        # it is a whole document.
        try:
            tomllib.loads("\n".join(self._lines[:index]))
        except tomllib.TOMLDecodeError:
            return False
        return True


def _key_pattern(key: str) -> str:
    quoted = re.escape(key)
    return rf"(?:{quoted}|\"{quoted}\"|'{quoted}')"
