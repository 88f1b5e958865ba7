"""The newest lines of a console: what agent, server and readers of run files keep of it."""

from __future__ import annotations

from collections.abc import Iterable

from memagent.wire.messages import ConsoleLine

MAX_CONSOLE_SIZE = 64 * 2**10
"""Characters kept of a rank's console, LINE_OVERHEAD of each line included."""
LINE_OVERHEAD = 32


def newest_lines(batches: Iterable[Iterable[ConsoleLine]]) -> list[ConsoleLine]:
    """Return what the lines of consecutive batches leave: a later one replaces its number's."""
    by_number = {line.number: line for batch in batches for line in batch}
    return tail_of([by_number[number] for number in sorted(by_number)])


def tail_of(lines: list[ConsoleLine], size: int = MAX_CONSOLE_SIZE) -> list[ConsoleLine]:
    """Return the last of the lines that fit the size."""
    room = size
    for index in range(len(lines) - 1, -1, -1):
        room -= len(lines[index].text) + LINE_OVERHEAD
        if room < 0:
            return lines[index + 1 :]
    return lines
