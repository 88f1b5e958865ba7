"""Census of containers: lists, dicts, sets, queues and buffers that grow, whatever they hold."""

from __future__ import annotations

import dataclasses
import gc
import operator
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import nlargest
from io import BytesIO, StringIO
from itertools import compress, repeat
from types import FunctionType, ModuleType
from typing import Any

from memagent.components import safe_reads
from memagent.components.live_objects import (
    TensorReading,
    of_types,
    tensors_and_lengths,
    with_ids,
    with_subclasses,
)
from memagent.leaks.census import MIN_SHARE
from memagent.leaks.length_notes import LengthNote, length_note
from memagent.leaks.object_sizes import BUFFERS, is_opaque, item_bytes, newest_item
from memagent.leaks.user_code import is_script_class, namespace, script_code, script_modules

MIN_BYTES_PER_STEP = 1024
_KINDS = (list, dict, set, deque)
_KIND_IDS = frozenset(map(id, _KINDS))
_MANY = 250_000
"""Containers from which on the shortest ones aren't noted. A script with torch and transformers has
90,000. A note of 225,000 takes 0.19 s in another thread, and 24 MiB; 925,000 take 0.6 s, 88 MiB."""
_SHORT_LENGTHS = (3, 7, 15)
"""Lengths of containers halfway, if they get an entry a step, and shorter ones."""
_MAX_LONGER, _MAX_NEW = 1000, 300
"""Containers of which items are noted in the middle: those that grew most, and the longest that are
new. Each takes up to 0.1 ms."""
_LENGTHS: dict[type, Callable[[Any], int]] = {
    BytesIO: BytesIO.tell,
    StringIO: StringIO.tell,
    **{kind: kind.__len__ for kind in (bytearray, array, *_KINDS)},
}
_NOT_FOLLOWED = (ModuleType, type, FunctionType)
_ROOT_LEVELS = 3


@dataclasses.dataclass(frozen=True)
class GrowingContainer:
    """A container with more items each step. `bytes_per_step`: 0 if what they keep is unknown."""

    container: Any
    items_per_step: float
    bytes_per_step: int


class ContainerCensus:
    """Lengths of all containers at the beginning, then of those that grow. Holds ids only.

    1. Note the length of every container at the beginning and in the middle of the window. Of very
       many, leave out the shortest ones.
    2. At its end, those that grew steadily in both parts are candidates, if they aren't young and
       the items that they had in the middle are still there. Otherwise a list that is cleared now
       and then may look longer by chance, and so may the input of each step.
    3. Estimate the size of an item from the newest ones: arrays, bytes, numbers, objects. The
       census of tensors counts those.
    4. Another thread may note what the collector tracks, during the step before each reading. Only
       what has grown by the last one is kept until then.
    """

    def __init__(self) -> None:
        self._first_step = 0
        self._has_begun = False
        self._is_noted = False
        """Another thread has noted what the next reading needs."""
        self._untracked: dict[int, int] | None = None
        """Lengths of what the collector doesn't track, if they were read before `begin`."""
        self._first: dict[int, int] = {}
        self._least = 0
        """Length up to which containers aren't noted."""
        self._middle_step = 0
        self._middle: dict[int, LengthNote] = {}
        self._longer: list[Any] | None = None
        """Containers that have grown since the middle, if they were noted."""

    def prepare(self) -> None:
        """Get ready for `note`, in this thread, before another one makes the first."""
        if not self._has_begun:
            self._untracked = _untracked_lengths()

    def note(self) -> TensorReading:
        """Note the containers for the next reading, in another thread. Return all tensors."""
        kinds = [kind for kind in container_kinds() if kind not in _KINDS]
        tensors, reading = tensors_and_lengths(_KINDS, kinds, *self._earlier())
        lengths = list(map(_length, reading.others))
        if not self._has_begun:
            ids = [*reading.ids, *map(id, reading.others)]
            self._note_first(ids, reading.lengths + lengths)
        elif not self._middle_step:
            longer = reading.longer + reading.others
            self._note_middle(longer, list(map(len, reading.longer)) + lengths)
        else:
            self._longer = reading.longer + reading.others
        self._is_noted = True
        return tensors

    def _earlier(self) -> tuple[dict[int, int] | None, int]:
        """Return lengths by id, and that of others, beyond which containers are looked at now."""
        if not self._has_begun:
            return None, 0
        if not self._middle_step:
            return self._first, self._least
        return {key: note.length for key, note in self._middle.items()}, sys.maxsize

    def begin(self, step: int) -> None:
        self._first_step = step
        # before the reading: this looks into objects, whose dicts Python makes only then
        untracked = _untracked_lengths() if self._untracked is None else self._untracked
        self._untracked = None
        if not self._take_noted():
            self._read_first()
        self._has_begun = True
        self._first.update(untracked)

    def middle(self, step: int) -> None:
        if not self._take_noted():
            self._read_middle()
        self._middle_step = step
        untracked = list(_untracked())
        self._note_middle(untracked, list(map(_length, untracked)))

    # In functions of their own: a list of all containers has the variables of running functions,
    # too, and a reading of these leaves them behind if anything else refers to them.

    def _read_first(self) -> None:
        containers, lengths = _with_lengths(_tracked())
        self._note_first(list(map(id, containers)), lengths)

    def _read_middle(self) -> None:
        # in two statements: the arguments of one call would be a list among the containers
        containers, lengths = _with_lengths(_tracked())
        self._note_middle(containers, lengths)

    def _take_noted(self) -> bool:
        is_noted, self._is_noted = self._is_noted, False
        return is_noted

    def _note_first(self, ids: list[int], lengths: list[int]) -> None:
        self._least = _least_length(lengths)
        ids, lengths = _longer_than(self._least, ids, lengths)
        self._first = dict(zip(ids, lengths, strict=True))

    def _note_middle(self, containers: list[Any], lengths: list[int]) -> None:
        containers, lengths = _longer_than(self._least, containers, lengths)
        earlier = list(map(self._first.get, map(id, containers), repeat(0)))
        are_longer = map(operator.gt, lengths, earlier)
        longer = list(compress(zip(containers, lengths, earlier, strict=True), are_longer))
        # to note the items of each new one took 16 s with 200,000 of them
        old = nlargest(_MAX_LONGER, (item for item in longer if item[2]), key=_added)
        new = nlargest(_MAX_NEW, (item for item in longer if not item[2]), key=_added)
        self._middle.update((id(item), length_note(item, length)) for item, length, _ in old + new)

    def growth_of(self, container: Any) -> int | None:
        """Return how many entries a list, dict, set or deque has more than in the middle.

        0 if it wasn't longer there than at the beginning, None for other objects, and newer ones.
        """
        kind = next((kind for kind in _KINDS if issubclass(type(container), kind)), None)
        if kind is None:
            return None
        middle = self._middle.get(id(container))
        if middle is not None:
            return max(0, kind.__len__(container) - middle.length)
        return 0 if id(container) in self._first else None

    def has_more(self, container: Any) -> bool:
        """Return True if a list, dict, set or deque may have more entries than at the beginning.

        One that wasn't noted then is new, unless it's short, or the collector doesn't track it.
        """
        first = self._first.get(id(container))
        if first is None:
            return bool(self._least) or not gc.is_tracked(container)
        return _length(container) > first

    def end(
        self,
        step: int,
        young: Collection[int] = (),
        is_new: Callable[[Any], object] = lambda _: None,
    ) -> list[GrowingContainer]:
        """Return what grew by at least `MIN_BYTES_PER_STEP`, most bytes first.

        young: ids of objects that are newer than the middle. A container that is made anew each
        step often has the id of the one before it. is_new: whether an object surely is, though not
        among the young: a step with many objects ages them.
        """
        growing = []
        for item in self._candidates(self._middle.keys() - set(young)):
            if growth := self._growth(item, _length(item), step, young, is_new):
                growing.append(growth)
        return sorted(growing, key=lambda item: -item.bytes_per_step)

    def _candidates(self, ids: Collection[int]) -> list[Any]:
        """Return the containers with these ids, or those of them that have grown."""
        untracked = [item for item in _untracked() if id(item) in ids]
        longer, self._longer = self._longer, None
        if not self._take_noted() or longer is None:
            kinds = (*_KINDS, *BUFFERS)
            longer = [item for item in with_ids(ids) if issubclass(type(item), kinds)]
        return [item for item in longer if id(item) in ids] + untracked

    def _growth(
        self,
        item: Any,
        length: int,
        step: int,
        young: Collection[int],
        is_new: Callable[[Any], object],
    ) -> GrowingContainer | None:
        steps = max(1, step - self._first_step)
        late_share = (step - self._middle_step) / steps
        middle = self._middle[id(item)]
        growth, late = length - self._first.get(id(item), 0), length - middle.length
        is_steady = late >= MIN_SHARE * late_share * growth
        is_steady &= growth - late >= MIN_SHARE * (1 - late_share) * growth
        if growth <= 1 or not is_steady or not middle.is_kept_by(item, length, young, is_new):
            return None
        rate = round(item_bytes(item, growth) * growth / steps)
        if rate < MIN_BYTES_PER_STEP and not is_opaque(newest_item(item)):
            return None
        known = rate if rate >= MIN_BYTES_PER_STEP else 0
        return GrowingContainer(item, growth / steps, known)


def container_kinds() -> list[type]:
    """Return the classes of containers, with those derived from them."""
    return with_subclasses((*_KINDS, *BUFFERS))


def _tracked() -> list[Any]:
    return of_types(container_kinds())


def _with_lengths(tracked: list[Any]) -> tuple[list[Any], list[int]]:
    """Return containers with their lengths.

    A process may have millions, so these are read within a few calls in C.
    """
    are_plain = list(map(_KIND_IDS.__contains__, map(id, map(type, tracked))))
    containers = list(compress(tracked, are_plain))
    lengths = list(map(len, containers))
    others = list(compress(tracked, map(operator.not_, are_plain)))
    return containers + others, lengths + list(map(_length, others))


def _least_length(lengths: Collection[int]) -> int:
    """Return the length up to which containers are left out, so that not too many are left."""
    if len(lengths) < _MANY:
        return 0
    counts = Counter(lengths)
    for least in _SHORT_LENGTHS:
        if sum(count for length, count in counts.items() if length > least) < _MANY:
            break
    return least


def _longer_than(
    least: int, containers: Sequence[Any], lengths: Sequence[int]
) -> tuple[list[Any], list[int]]:
    are_longer = list(map(least.__lt__, lengths))
    return list(compress(containers, are_longer)), list(compress(lengths, are_longer))


def _added(item: tuple[Any, int, int]) -> int:
    return item[1] - item[2]


def _untracked() -> Iterator[Any]:
    """Yield dicts of numbers, bytes or arrays, and each `bytearray`, that the script refers to.

    Also those of descriptors, in the namespaces of its classes.
    """
    level: list[Any] = [space for _, _, space in script_modules()]
    level += [code.globals if code.is_module else code.variables for code in script_code()]
    classes = [item for item in safe_reads.parts_of(*level).others if issubclass(type(item), type)]
    spaces = safe_reads.parts_of(*filter(is_script_class, classes)).others
    level += [item for item in spaces if type(item) is dict]
    for _ in range(_ROOT_LEVELS):
        level = safe_reads.parts_of(*level).others
        yield from (item for item in level if type(item) in BUFFERS[:2])
        level = [item for item in level if type(item) is dict or namespace(item) is not None]
        level = [item for item in level if not issubclass(type(item), _NOT_FOLLOWED)]
        yield from (item for item in level if type(item) is dict and not gc.is_tracked(item))


def _untracked_lengths() -> dict[int, int]:
    return {id(item): _length(item) for item in _untracked()}


def _length(container: Any) -> int:
    # not the methods of a subclass, which are the script's
    kind = next(kind for kind in _LENGTHS if issubclass(type(container), kind))
    try:
        return int(_LENGTHS[kind](container))
    except ValueError:  # a closed stream
        return 0
