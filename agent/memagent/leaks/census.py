"""Census of live tensors: two of them, some steps apart, show which tensors accumulate.

1. Make one pass over the objects that the garbage collector tracks. Keep only weak references and
   numbers.
2. Recognize a tensor by its weak reference, as ids and addresses are reused within microseconds.
   Parameters and subclasses get none, because `torch.utils.swap_tensors` refuses tensors with weak
   references; they are recognized by their storage.
3. A tensor has *survived* if it's newer than the first census and was alive a step before the last
   one. Gradients, batches and losses don't survive.
4. A group of tensors (device, dtype, number of dimensions) grows only if their number grows, in
   both halves of the window: a buffer that fills up, or is replaced, doesn't.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

MIN_SHARE = 0.5
"""A part of the window must bring at least this share of what steady growth brings in it."""
MIN_REPLACED = 10
"""Tensors by which those must have become more that are replaced now and then."""
TensorGroup = tuple[str, str, int]
"""Device, dtype, and number of dimensions."""


class TensorEntry(msgspec.Struct, frozen=True, gc=False):
    """A live tensor. It shows `size_bytes` of its storage's `storage_bytes`.

    The collector doesn't track it: thousands of new objects would make it look through all others.
    """

    reference: weakref.ref[Any] | None
    storage: int
    """Identity of the storage."""
    storage_bytes: int
    size_bytes: int
    device: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def group(self) -> TensorGroup:
        return (self.device, self.dtype, len(self.shape))


@dataclass(frozen=True)
class Census:
    """The tensors alive after `step`, by id.

    nodes: size of their autograd graphs. newest_node: sequence number of the last one.
    """

    step: int
    entries: dict[int, TensorEntry]
    nodes: int = 0
    newest_node: int = 0

    def has(self, tensor: Any, entry: TensorEntry, shape: tuple[int, ...] | None = None) -> bool:
        """Return True if this very tensor was counted, with this `shape` if one is given.

        entry: its present entry.
        """
        old = self.entries.get(id(tensor))
        if old is None or shape not in (None, old.shape):
            return False
        # the id alone may be reused by a new tensor
        if old.reference is not None:
            return old.reference() is tensor
        return old.storage == entry.storage

    def storage_bytes(self, device: str = "") -> int:
        """Return the size of all storages, or of those on one device."""
        entries = (item for item in self.entries.values() if device in ("", item.device))
        return sum({entry.storage: entry.storage_bytes for entry in entries}.values())

    def groups(self) -> Counter[TensorGroup]:
        return Counter(entry.group for entry in self.entries.values())


def take(
    step: int, tensors: Iterable[Any], nodes: int = 0, earlier: Census | None = None
) -> Census:
    """Return the census of `tensors`. Reads no data and never synchronizes.

    earlier: shares its entries of tensors that haven't changed. While tracemalloc runs, each object
    takes microseconds, and what is kept is traced, too.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return Census(step, {})
    # A mode or a subclass of the script must not see these calls.
    with torch._C.DisableTorchFunction():
        known = earlier.entries if earlier is not None else {}
        return Census(step, dict(_entries(torch, tensors, known)), nodes)


def _entries(
    torch: Any, tensors: Iterable[Any], known: Mapping[int, TensorEntry]
) -> Iterator[tuple[int, TensorEntry]]:
    plain = torch.Tensor
    devices: dict[Any, str] = {}
    dtypes: dict[Any, str] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for tensor in tensors:
        entry = known.get(id(tensor))
        if entry is not None and _is_unchanged(tensor, entry):
            yield id(tensor), entry
            continue
        kind = type(tensor)
        try:
            device, dtype = tensor.device, tensor.dtype
            shape = tuple(tensor.shape)
            if kind.__torch_dispatch__ is plain.__torch_dispatch__:
                storage, storage_bytes, size, shape = _memory_of(torch, tensor, shape)
            else:  # a wrapper of other tensors, which are counted themselves
                storage, storage_bytes, size = id(tensor), 0, tensor.numel() * dtype.itemsize
        # opaque, or not fully constructed
        except (RuntimeError, NotImplementedError, AttributeError, ValueError, TypeError):
            continue
        if device.type == "meta":
            continue
        name = devices.get(device) or devices.setdefault(device, str(device))
        text = dtypes.get(dtype) or dtypes.setdefault(dtype, str(dtype).removeprefix("torch."))
        # swap_tensors refuses a tensor with weak references
        reference = weakref.ref(tensor) if kind is plain else None
        shape = shapes.setdefault(shape, shape)
        yield id(tensor), TensorEntry(reference, storage, storage_bytes, size, name, text, shape)


def _is_unchanged(tensor: Any, entry: TensorEntry) -> bool:
    """Return True if the entry is of this very tensor, with the same shape and storage."""
    known = None if entry.reference is None else entry.reference()
    if known is not tensor or known is None or known.shape != entry.shape:
        return False
    try:
        memory = known.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return (memory._cdata, memory.nbytes()) == (entry.storage, entry.storage_bytes)


def _memory_of(
    torch: Any, tensor: Any, shape: tuple[int, ...]
) -> tuple[int, int, int, tuple[int, ...]]:
    """Return identity and size of a tensor's storage, the bytes that it shows, and its shape."""
    try:
        memory = tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        parts = _sparse_parts(torch, tensor)
        size = sum(part.numel() * part.dtype.itemsize for part in parts)
        # the values that are stored count as a length, which may grow
        return parts[0].untyped_storage()._cdata, size, size, (len(parts[0]), *shape)
    return memory._cdata, memory.nbytes(), tensor.numel() * tensor.dtype.itemsize, shape


def _sparse_parts(torch: Any, tensor: Any) -> tuple[Any, ...]:
    """Return the values of a sparse tensor, and their indices. Raises what torch does for others.

    A mode of the script must not see these calls, nor autograd record them.
    """
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        if tensor.layout == torch.sparse_coo:
            return tensor._values(), tensor._indices()
        if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            return tensor.values(), tensor.crow_indices(), tensor.col_indices()
        return tensor.values(), tensor.ccol_indices(), tensor.row_indices()


# -- more tensors -------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupGrowth:
    """Growth of one group between two censuses. `survivors` are the tensors themselves."""

    survivors: list[Any]
    bytes_per_step: int
    is_mostly_hidden: bool
    """True if the survivors are views that keep much more memory than they show."""
    group: TensorGroup
    is_renewed: bool = False
    """True if these are new ones in place of survivors: they're freed within a step."""
    is_rare: bool = False
    """True if they are replaced by more of them now and then."""
    early_ids: frozenset[int] = frozenset()
    """Survivors from the first part of the window, which has this share of its steps."""
    early_share: float = 0.5

    def part(self, survivors: list[Any], bytes_per_step: int) -> GroupGrowth | None:
        """Return the growth of some of the survivors, None if it's not steady."""
        early = sum(id(tensor) in self.early_ids for tensor in survivors)
        counts = (early, self.early_share), (len(survivors) - early, 1 - self.early_share)
        if not all(count >= MIN_SHARE * share * len(survivors) > 0 for count, share in counts):
            return None
        return replace(self, survivors=survivors, bytes_per_step=bytes_per_step)


_Members = list[tuple[Any, TensorEntry]]


def growing_groups(
    first: Census,
    before_last: Census,
    last: Census,
    tensors: Iterable[Any],
    middle: Census | None = None,
) -> list[GroupGrowth]:
    """Return the groups that grew and have survivors, most bytes first.

    tensors: those of the `last` census. before_last: a census from one step earlier. middle: one
    from halfway, to leave out groups that grow in one half only. If hardly any tensor survived
    although there are more each step, the new ones stand in for survivors: this happens if every
    hook that was ever registered keeps the newest input. Or they are replaced by more now and then.
    """
    more = last.groups()
    more.subtract(first.groups())
    groups: dict[TensorGroup, tuple[_Members, _Members]] = {}
    for tensor in tensors:
        entry = last.entries.get(id(tensor))
        if entry is not None and more[entry.group] > 1 and not first.has(tensor, entry):
            survivors, new = groups.setdefault(entry.group, ([], []))
            (survivors if before_last.has(tensor, entry) else new).append((tensor, entry))
    steps = max(1, before_last.step - first.step)
    if middle is not None and 2 * (last.step - middle.step) < middle.step - first.step:
        middle = None  # the window ended early
    growths = []
    for group, (survivors, new) in groups.items():
        is_steady = middle is None or _is_steady(group, first, middle, last, survivors)
        # else as many old ones were freed: a group of constant size, such as a replay buffer
        if is_steady and len(survivors) > 1 and 2 * more[group] >= len(survivors):
            growth = _growth(survivors, steps)
            growths.append(growth if middle is None else _with_early(growth, first, middle, last))
        elif is_steady and len(survivors) <= 1 and more[group] >= steps // 2:
            growths.append(replace(_growth(new, steps), is_renewed=True))
        elif middle is not None and _are_replaced_by_more(group, first, middle, last, survivors):
            growth = _growth([*survivors, *new], steps)
            growths.append(replace(growth, is_renewed=True, is_rare=True))
    return sorted(growths, key=lambda growth: -growth.bytes_per_step)


def _is_steady(
    group: tuple[str, str, int], first: Census, middle: Census, last: Census, survivors: _Members
) -> bool:
    """Return True if both parts of the window have a fair share of the growth and of the survivors.

    A cache that filled up has no growth in the second half; the items of a short queue were all
    made in the second half.
    """
    counts = [item.groups()[group] for item in (first, middle, last)]
    early_share = (middle.step - first.step) / max(1, last.step - first.step)
    early = sum(middle.has(tensor, entry) for tensor, entry in survivors)
    late = len(survivors) - early
    late_share = MIN_SHARE * (1 - early_share)
    if counts[2] - counts[1] < late_share * (counts[2] - counts[0]):
        return False
    if len(survivors) <= 1:
        return True
    return late >= late_share * len(survivors) and early >= MIN_SHARE * early_share * len(survivors)


def _are_replaced_by_more(
    group: TensorGroup, first: Census, middle: Census, last: Census, survivors: _Members
) -> bool:
    """Return True if the group grew steadily, though hardly any member is older than the middle."""
    counts = [item.groups()[group] for item in (first, middle, last)]
    growth, late = counts[2] - counts[0], counts[2] - counts[1]
    late_share = (last.step - middle.step) / max(1, last.step - first.step)
    is_steady = MIN_SHARE * late_share <= late / max(1, growth)
    is_steady &= MIN_SHARE * (1 - late_share) <= 1 - late / max(1, growth)
    early = sum(middle.has(tensor, entry) for tensor, entry in survivors)
    return growth >= MIN_REPLACED and is_steady and early <= len(survivors) // 8


def _growth(members: _Members, steps: int) -> GroupGrowth:
    # by storage: views of one storage count once
    total_bytes = sum({entry.storage: entry.storage_bytes for _, entry in members}.values())
    visible_bytes = sum(
        {(entry.storage, entry.shape): entry.size_bytes for _, entry in members}.values()
    )
    tensors = [tensor for tensor, _ in members]
    return GroupGrowth(
        tensors,
        round(total_bytes / steps),
        is_mostly_hidden=total_bytes > 8 * max(visible_bytes, 1),
        group=members[0][1].group,
    )


def _with_early(growth: GroupGrowth, first: Census, middle: Census, last: Census) -> GroupGrowth:
    """Return a growth with the survivors that were there in the middle."""
    alive = (id(item) for item in growth.survivors if middle.has(item, last.entries[id(item)]))
    share = (middle.step - first.step) / max(1, last.step - first.step)
    return replace(growth, early_ids=frozenset(alive), early_share=share)


_MIN_CONTINUED_SHARE = 0.25
MAX_SLOW_SHARE = 0.7
"""Share of its first rate up to which the growth of a table has slowed down: if keys come at random
from a finite set, a third of it is full then."""
_MAX_FREED_SHARE = 0.5
"""Share of a window's growth that may be freed at the end of a run. Of a leak, all is."""


@dataclass(frozen=True)
class GroupCount:
    """How many tensors a group that grew had after `step`, to see later whether it still grows."""

    group: TensorGroup
    step: int
    count: int
    per_step: float
    burst: int = 0
    """The most that came between two readings of the window, perhaps at once."""

    def at(self, later: Census) -> GroupCount:
        """Return the count of a later census, with the first rate."""
        return replace(self, step=later.step, count=later.groups()[self.group])

    def has_grown_since(self, later: Census) -> bool:
        """Return True if the growth has gone on at a quarter of its rate or more."""
        expected = self.per_step * (later.step - self.step)
        return later.groups()[self.group] - self.count >= max(1.0, _MIN_CONTINUED_SHARE * expected)

    def has_slowed_since(self, later: Census) -> bool:
        """Return True if so much less was added than by its rate that no pause explains it."""
        expected = self.per_step * (later.step - self.step)
        added = later.groups()[self.group] - self.count
        return added < MAX_SLOW_SHARE * expected and expected - added > self.burst

    def has_lost_any(self, later: Census, window_steps: int) -> bool:
        """Return True if what grew in a window of that many steps has been freed since."""
        freed = self.count - later.groups()[self.group]
        return freed > _MAX_FREED_SHARE * self.per_step * window_steps


def group_counts(
    growths: Iterable[GroupGrowth], first: Census, middle: Census | None, last: Census
) -> tuple[GroupCount, ...]:
    """Return the counts of groups that grew between two censuses. middle: one between them."""
    readings = [item.groups() for item in (first, middle or first, last)]
    steps = max(1, last.step - first.step)
    counts = []
    for group in dict.fromkeys(growth.group for growth in growths):
        before, halfway, now = (reading[group] for reading in readings)
        burst = max(halfway - before, now - halfway)
        counts.append(GroupCount(group, last.step, now, (now - before) / steps, burst))
    return tuple(counts)
