"""Length of a container halfway through a window, with a sample of its items.

It tells later whether the container still has them: one that is cleared now and then, or made anew,
may be longer by chance.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from itertools import compress, islice
from typing import Any

from memagent.components import safe_reads
from memagent.components.safe_reads import Parts
from memagent.leaks.object_sizes import is_buffer

_NUMBERS = (int, bool, type(None))
_SAMPLE_SIZE = 8


@dataclasses.dataclass(frozen=True)
class LengthNote:
    """Length of a container in the middle, with some of its items."""

    length: int
    interval: int
    """Of the items in the sample, which begins with the first one."""
    identities: list[weakref.ref[Any] | int]
    """Weak references, or ids of items that allow none."""
    numbers: dict[int, Any]
    """Numbers by place in the sample: equal ones are often one object, so ids tell nothing."""

    @property
    def _ids(self) -> set[int]:
        return {item for item in self.identities if isinstance(item, int)}

    def is_kept_by(
        self, container: Any, length: int, young: Collection[int], is_new: Callable[[Any], object]
    ) -> bool:
        """Return True if the items are still there, and no new ones at their addresses."""
        if self.numbers and not self._keeps_numbers(container, length - self.length):
            return False
        if not self.identities or self._are_in_place(container, length, young, is_new):
            return True
        items, array_ids, _ = safe_reads.items_of(_values(container))
        ids = {*map(id, items), *array_ids}.difference(young)
        present = compress(items, map(self._ids.__contains__, map(id, items)))
        return not any(map(is_new, present)) and all(
            item in ids if isinstance(item, int) else item() is not None for item in self.identities
        )

    def _are_in_place(
        self, container: Any, length: int, young: Collection[int], is_new: Callable[[Any], object]
    ) -> bool:
        """Return True if all of them are surely where they were: no need to list all items."""
        known_ids = self._ids
        for start in {0, max(0, length - self.length)}:
            sample, array_ids, _ = _sample(container, self.interval, start)
            ids = {*map(id, sample), *array_ids}.difference(young)
            expected = (item for item in sample if id(item) in known_ids)
            if not any(map(is_new, expected)) and all(
                item in ids if isinstance(item, int) else item() is not None
                for item in self.identities
            ):
                return True
        return False

    def _keeps_numbers(self, container: Any, added: int) -> bool:
        """Return True if most numbers are where they were, or as many places later as were added.

        Those may have been added at the beginning.
        """
        samples = [_sample(container, self.interval, start).others for start in {0, max(0, added)}]
        places = (
            any(place < len(sample) and sample[place] is number for sample in samples)
            for place, number in self.numbers.items()
        )
        return 2 * sum(places) >= len(self.numbers)


def _values(container: Any) -> Collection[Any]:
    return container.values() if isinstance(container, dict) else container


def _sample(container: Any, interval: int, start: int = 0) -> Parts:
    return safe_reads.items_of(islice(_values(container), start, None, interval))


def length_note(container: Any, length: int) -> LengthNote:
    """Return the note of a container with this length."""
    interval = max(1, length // _SAMPLE_SIZE)
    parts = safe_reads.items_of(()) if is_buffer(container) else _sample(container, interval)
    is_ordered = isinstance(container, list | deque) and not parts.array_ids
    identities: list[weakref.ref[Any] | int] = []
    numbers: dict[int, Any] = {}
    for place, item in enumerate(parts.others):
        if is_ordered and type(item) in _NUMBERS:
            numbers[place] = item
            continue
        try:
            # swap_tensors refuses a parameter with weak references
            is_parameter = hasattr(type(item), "_is_param") or "Parameter" in type(item).__name__
            identities.append(id(item) if is_parameter else weakref.ref(item))
        except TypeError:
            identities.append(id(item))
    if isinstance(container, dict):  # such as attributes: the script may resize them
        identities += parts.array_ids
    elif parts.array_ids:
        # freed arrays are often replaced at the same address, so ids alone don't tell
        sample = partial(islice, container, 0, None, interval)
        identities += safe_reads.references_to(sample, parts.array_ids)
    return LengthNote(length, interval, identities, numbers)
