"""Import of the leak finder, in slices. Most runs never need it, and at once it takes 150 ms."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module

from memagent.probe.detached import forks_wait

MAX_SLICE_S = 0.015
"""Processor time after which a slice begins no further import. Each takes 5 to 20 ms."""
PARTS = (
    "memagent.leaks.source_lines",
    "memagent.leaks.user_code",
    "memagent.leaks.limits",
    "memagent.leaks.object_names",
    "memagent.leaks.variable_walk",
    "memagent.leaks.referrers",
    "memagent.leaks.suspect",
    "memagent.leaks.trace_pause",
    "memagent.leaks.block_trace",
    "memagent.leaks.growth",
    "memagent.leaks.bounds",
    "memagent.leaks.length_notes",
    "memagent.leaks.origins",
    "memagent.leaks.reachability",
    "memagent.leaks.growing_containers",
    "memagent.leaks.heap_trace",
    "memagent.leaks.native_suspects",
    "memagent.leaks.pattern_fixes",
    "memagent.leaks.traced_holders",
    "memagent.leaks.detectors.host_memory",
    "memagent.leaks.detectors.loader_workers",
    "memagent.leaks.carried_tensors",
    "memagent.leaks.group_suspects",
    "memagent.leaks.detectors.tensors",
    "memagent.leaks.window",
    "memagent.leaks.finder",
    "memagent.leaks.source_excerpt",
)
"""Modules of the finder, those that others import first."""


class FinderImport:
    """Imports the finder over several steps, on the training thread."""

    def __init__(self, thread_clock: Callable[[], float] = time.thread_time) -> None:
        self._left = list(PARTS)
        self._thread_clock = thread_clock

    def go_on(self) -> bool:
        """Import for one slice. Return True once everything has been imported."""
        began_s = self._thread_clock()
        with forks_wait():
            while self._left:
                import_module(self._left.pop(0))
                if self._thread_clock() - began_s >= MAX_SLICE_S:
                    break
        return not self._left
