"""Which tensors are alive: taken twice some steps apart, it tells what came to stay.

1. One pass over what the garbage collector tracks; nothing is kept but weak references and numbers.
2. A tensor is known again by its weak reference (ids and addresses are reused within microseconds). Parameters and subclasses have none
   taken: `torch.utils.swap_tensors` refuses tensors with weak references. They are known by the storage they lie on.
3. What is new since the first census and was there a whole step ago has *survived*: gradients, batches and losses have not.
4. A kind of tensor (device, dtype, dimensions) that did not become more numerous does not grow, whoever came and went.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any, NamedTuple

Shape = tuple[int, ...]


class Entry(NamedTuple):
    """A live tensor. `storage` identifies the memory below it, of `storage_bytes`, of which the tensor shows `size_bytes`."""

    reference: weakref.ref[Any] | None
    storage: int
    storage_bytes: int
    size_bytes: int
    device: str
    dtype: str
    shape: Shape

    @property
    def group(self) -> tuple[str, str, int]:
        return (self.device, self.dtype, len(self.shape))


@dataclass(frozen=True)
class Census:
    """The tensors alive after `step`, by id. `nodes`: how large their autograd graphs were."""

    step: int
    entries: dict[int, Entry]
    nodes: int = 0

    def has(self, tensor: Any, entry: Entry) -> bool:
        """Whether this very tensor was among them. `entry` is its present one."""
        found = self.entries.get(id(tensor))
        if found is None:
            return False
        return (
            found.reference() is tensor
            if found.reference is not None
            else found.storage == entry.storage
        )

    def groups(self) -> Counter[tuple[str, str, int]]:
        return Counter(entry.group for entry in self.entries.values())


def live_tensors() -> list[Any]:
    """Every tensor that Python knows of. Those of autograd's C++ graph are among them only if Python has seen them."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    return living(lambda kind: torch.Tensor in kind.__mro__)


def living(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Everything the garbage collector tracks whose type is wanted; not what `gc.freeze` has set aside."""
    objects = gc.get_objects()
    kinds = set(filter(is_wanted, set(map(type, objects))))
    return list(compress(objects, map(kinds.__contains__, map(type, objects))))


def take(step: int, tensors: Iterable[Any], nodes: int = 0) -> Census:
    """The census of `tensors`. Reads no data and never synchronises."""
    torch = sys.modules.get("torch")
    if torch is None:
        return Census(step, {})
    with (
        torch._C.DisableTorchFunction()
    ):  # a mode or a subclass of the script's must not see us look
        return Census(step, dict(_entries(torch, tensors)), nodes)


def _entries(torch: Any, tensors: Iterable[Any]) -> Iterator[tuple[int, Entry]]:
    plain, parameter = torch.Tensor, torch.nn.Parameter
    devices: dict[Any, str] = {}
    dtypes: dict[Any, str] = {}
    for tensor in tensors:
        kind = type(tensor)
        try:
            device, dtype = tensor.device, tensor.dtype
            size = tensor.numel() * dtype.itemsize
            if kind is plain or kind is parameter:
                memory = tensor.untyped_storage()
                storage, storage_bytes = memory._cdata, memory.nbytes()
            else:  # made of other tensors, which are counted themselves
                storage, storage_bytes = id(tensor), 0
            shape = tuple(tensor.shape)
        except (
            RuntimeError,
            NotImplementedError,
            AttributeError,
            ValueError,
            TypeError,
        ):  # sparse, opaque, half made
            continue
        if device.type == "meta":
            continue
        name = devices.get(device) or devices.setdefault(device, str(device))
        text = dtypes.get(dtype) or dtypes.setdefault(dtype, str(dtype).removeprefix("torch."))
        reference = weakref.ref(tensor) if kind is plain else None
        yield id(tensor), Entry(reference, storage, storage_bytes, size, name, text, shape)


Pairs = list[tuple[Any, Entry]]


@dataclass(frozen=True)
class Growth:
    """What the tensors of one kind did between two censuses. `survivors` are they themselves, oldest knowledge first."""

    survivors: list[Any]
    bytes_per_step: int
    keeps_more: bool
    """The survivors are views that keep much more memory than they show."""


def grown(first: Census, before: Census, last: Census, tensors: Iterable[Any]) -> list[Growth]:
    """What survived and became more, by device, dtype and dimensions; most bytes first. `tensors` are those of the `last` census, `before`
    was taken a step earlier.

    Where almost none survived although there are more each step (each hook ever registered keeps the newest input), new ones stand in."""
    more = last.groups()
    more.subtract(first.groups())
    kinds: dict[tuple[str, str, int], tuple[Pairs, Pairs]] = {}
    for tensor in tensors:
        entry = last.entries.get(id(tensor))
        if entry is not None and more[entry.group] > 1 and not first.has(tensor, entry):
            survived, fresh = kinds.setdefault(entry.group, ([], []))
            (survived if before.has(tensor, entry) else fresh).append((tensor, entry))
    steps = max(1, before.step - first.step)
    found = []
    for group, (survived, fresh) in kinds.items():
        if len(survived) > 1 and 2 * more[group] >= len(survived):
            found.append(_growth(survived, steps))
        elif len(survived) <= 1 and more[group] >= steps // 2:
            found.append(_growth(fresh, steps))
    return sorted(found, key=lambda growth: -growth.bytes_per_step)


def _growth(pairs: Pairs, steps: int) -> Growth:
    kept = sum({entry.storage: entry.storage_bytes for _, entry in pairs}.values())
    shown = sum({(entry.storage, entry.shape): entry.size_bytes for _, entry in pairs}.values())
    return Growth(
        [tensor for tensor, _ in pairs], round(kept / steps), keeps_more=kept > 8 * max(shown, 1)
    )


@dataclass(frozen=True)
class Longer:
    """A tensor that is made anew each step, longer each time."""

    tensor: Any
    bytes_per_step: int


def lengthened(first: Census, before: Census, last: Census, tensors: Iterable[Any]) -> list[Longer]:
    """Tensors like `buffer = torch.cat([buffer, x])`: the same shape but for one dimension, which grew as steadily as the steps did."""
    old, recent = _by_family(first), _by_family(before)
    found = []
    for tensor in tensors:
        entry = last.entries.get(id(tensor))
        if entry is None or before.has(tensor, entry):
            continue
        for axis, length in enumerate(entry.shape):
            family = _family(entry, axis)
            earliest, latest = old.get(family, ()), recent.get(family, ())
            if length > 2 and any(
                _is_line(a, b, length, first, before, last) for a in earliest for b in latest
            ):
                steps = last.step - first.step
                start = min(a for a in earliest if a < length)
                found.append(
                    Longer(tensor, round(entry.size_bytes * (length - start) / length / steps))
                )
                break
    return sorted(found, key=lambda longer: -longer.bytes_per_step)


def _is_line(a: int, b: int, c: int, first: Census, before: Census, last: Census) -> bool:
    if not a < b < c:
        return False
    slope = (c - a) / (last.step - first.step)
    return abs(c - b - slope * (last.step - before.step)) <= 0.25 * slope + 1e-9


def _family(entry: Entry, axis: int) -> tuple[Any, ...]:
    return (entry.device, entry.dtype, axis, *entry.shape[:axis], -1, *entry.shape[axis + 1 :])


def _by_family(census: Census) -> dict[tuple[Any, ...], set[int]]:
    families: dict[tuple[Any, ...], set[int]] = {}
    for entry in census.entries.values():
        for axis, length in enumerate(entry.shape):
            families.setdefault(_family(entry, axis), set()).add(length)
    return families
