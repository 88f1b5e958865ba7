"""Suspects: their kinds, how to classify them, and the fix for each kind."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from types import AsyncGeneratorType, CoroutineType, FunctionType, GeneratorType, TracebackType
from typing import Any, Literal, get_args

from msgspec.structs import replace

from memagent.leaks.census import GroupGrowth
from memagent.leaks.detectors.base import StackAllocation
from memagent.leaks.object_labels import link_of
from memagent.leaks.object_names import ObjectName
from memagent.leaks.referrers import HolderPath
from memagent.leaks.source_lines import GROWS, PASSES, SETS, SourceLine
from memagent.leaks.statement_fixes import UNKNOWN, statement_fix
from memagent.leaks.stored_values import Traits
from memagent.wire.messages import DiagnosisMethod, Suspect

Kind = Literal[
    "list", "dict", "deque", "set", "object", "variable", "graph", "hidden_state", "gradient",
    "buffer", "hook", "closure", "exception", "autograd_function", "cache", "view", "optimizer",
    "dataloader", "cycle", "worker", "copy_on_write", "thread", "host", "allocation",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

WAITING = (CoroutineType, GeneratorType, AsyncGeneratorType)
"""Types of functions that wait to go on, with their variables."""

CERTAINTIES = {GROWS: 1.0, PASSES: 0.8, SETS: 0.6}
"""Confidence by the strength of a line."""
_MIN_OPAQUE_GROWTH = 1024
"""Bytes a step, as for the containers whose items show their size."""
_OPAQUE_CONFIDENCE = 0.6
"""Confidence factor for a container that only grew while memory did."""
_MAX_SUSPECTS = 3
_FIXES: dict[Kind, str] = {
    "list": "Append `x.detach().cpu()` or `x.item()`, and clear the list once its values are used.",
    "dict": "Store `x.detach().cpu()` or `x.item()`, and delete entries once they are used.",
    "deque": "Give the deque a `maxlen`, and append `x.detach().cpu()`.",
    "set": "Add numbers or `x.detach().cpu()`, and clear the set once its values are used.",
    "object": "Delete what is no longer needed, or store `x.detach().cpu()`.",
    "variable": "Write into a tensor of fixed size, or collect the values on the CPU.",
    "graph": (
        "Add `loss.item()` or `loss.detach()`: "
        "a sum of losses with gradients keeps the graph of every step."
    ),
    "hidden_state": (
        "Carry `hidden.detach()` into the next step: otherwise it keeps the graphs of all earlier "
        "steps."
    ),
    "gradient": (
        "Use `torch.autograd.grad` instead of `backward(create_graph=True)`, "
        "or set `.grad = None` after each step."
    ),
    "buffer": (
        "Preallocate the buffer and write into it, "
        "or keep running statistics instead of all values."
    ),
    "hook": (
        "Store `output.detach().cpu()` of one step only: "
        "clear it before each forward, or remove the hook."
    ),
    "closure": (
        "Pass the tensor as an argument, or capture a number instead: "
        "a closure keeps everything it mentions."
    ),
    "exception": (
        "Keep `str(error)`, or call `error.with_traceback(None)`: "
        "a traceback keeps all local variables of its frames."
    ),
    "autograd_function": (
        "Use `ctx.save_for_backward(x)` instead of an attribute: "
        "autograd frees what is saved that way."
    ),
    "cache": (
        "Do not cache by tensor, as each one is a new key: cache by a number or string, "
        "or set `maxsize` and call `cache_clear()`."
    ),
    "view": "Keep `x.clone()`: even a small view keeps the whole tensor that it was cut from.",
    "optimizer": (
        "Add a parameter group only once, and create a new optimizer when parameters are replaced."
    ),
    "dataloader": "Return plain tensors from the dataset, and keep no batches outside the loader.",
    "cycle": (
        "Not a leak: a reference cycle that waits for the garbage collector. "
        "Break the cycle, or call `gc.collect()` now and then."
    ),
    "worker": (
        "Store nothing in `__getitem__`: each worker has its own copy of the dataset, "
        "which grows until the epoch ends."
    ),
    "copy_on_write": (
        "Keep the samples in a numpy array or a tensor: "
        "reading Python objects writes their reference counts, which copies their pages."
    ),
    "thread": (
        "End the thread, and `join` it: each one keeps its variables for as long as it waits. "
        "Put with a timeout where nobody may get any more."
    ),
    "host": "Delete the objects created at this line, or keep fewer of them.",
    "allocation": (
        "Check what keeps the result of this line: "
        "memory allocated here is still in use steps later."
    ),
}


def fix_for(kind: Kind) -> str:
    """Return what to do about a suspect of this kind. Raises KeyError for an unknown kind."""
    return _FIXES[kind]


def build_suspect(
    file: str,
    line: int,
    function: str | None,
    holder: str,
    kind: Kind,
    bytes_per_step: int | None,
    confidence: float,
    traits: Traits = UNKNOWN,
) -> Suspect:
    """Return a suspect with the fix for its statement, or for its kind if that isn't known."""
    fix = statement_fix(kind, file, line, holder, traits)
    return Suspect(
        file=file,
        line=line,
        function=function[:200] if function else None,
        holder=holder,
        kind=kind,
        bytes_per_step=bytes_per_step,
        confidence=round(confidence, 2),
        fix=fix or fix_for(kind),
    )


def without_source(suspects: Sequence[Suspect]) -> tuple[Suspect, ...]:
    """Return the suspects with the fix for their kind, where theirs quotes the script."""
    every = [Traits(*flags) for flags in product((False, True), repeat=3)]
    fixes = [
        {statement_fix(item.kind, item.file, item.line, item.holder, one) for one in every}
        for item in suspects
    ]
    return tuple(
        replace(item, fix=fix_for(item.kind)) if item.fix in quoting else item  # type: ignore[arg-type]
        for item, quoting in zip(suspects, fixes, strict=True)
    )


def scale_confidence(suspect: Suspect, factor: float) -> Suspect:
    """Return the suspect with its confidence multiplied by `factor`."""
    return replace(suspect, confidence=round(suspect.confidence * factor, 2))


def suspect_at(
    name: ObjectName,
    line: SourceLine | None,
    holder: str,
    kind: Kind,
    rate: int | None,
    confidence: float,
    traits: Traits = UNKNOWN,
) -> Suspect:
    """Return a suspect at `line`, or less surely at the function that has the name."""
    if line is None:
        first = name.code.co_firstlineno if name.code else 0
        place = name.file, first, name.function
        return build_suspect(*place, holder, kind, rate, confidence * 0.7, traits)
    place = line.file, line.line, line.function
    return build_suspect(*place, holder, kind, rate, confidence, traits)


def rank_suspects(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return one suspect per line, surest and largest first."""
    lines: dict[tuple[str, int], Suspect] = {}
    for suspect in sorted(suspects, key=lambda item: (-item.confidence, -_rate(item))):
        lines.setdefault((suspect.file, suspect.line), suspect)
    ranked = sorted(lines.values(), key=lambda item: -_rate(item) * item.confidence)
    return ranked[:_MAX_SUSPECTS]


def with_sums(suspects: Sequence[Suspect], growth_bytes_per_step: int = 0) -> list[Suspect]:
    """Return the suspects with the bytes of all that the same line fills: `d[key].append(x)`.

    A network has weights and biases, which are counted one by one and may share memory: the sum is
    at most the growth of memory in use, if that's known and more than the largest part.
    """
    parts: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for item in suspects:
        parts[item.file, item.line].append(_rate(item))
    limit = growth_bytes_per_step or math.inf
    rates = {place: min(sum(sizes), max(limit, *sizes)) for place, sizes in parts.items()}
    return [
        replace(item, bytes_per_step=rates[item.file, item.line] or item.bytes_per_step)
        for item in suspects
    ]


def with_opaque_holders(
    suspects: Sequence[Suspect], growth_bytes_per_step: int = 0
) -> list[Suspect]:
    """Return allocations with the opaque container that the same function fills, if it fills one.

    Nothing shows what such a container keeps, and nothing else keeps what is allocated there. If
    memory grows and nobody else is suspected, they are suspects themselves, though less sure.
    """
    opaque = [item for item in suspects if item.kind == "host" and not item.bytes_per_step]
    holders = {(item.file, item.function): item for item in opaque}
    results = []
    for item in suspects:
        holder = holders.get((item.file, item.function)) if item.kind == "allocation" else None
        if holder is not None:
            results.append(replace(holder, bytes_per_step=item.bytes_per_step))
        elif item not in opaque:
            results.append(item)
    if results or growth_bytes_per_step < _MIN_OPAQUE_GROWTH:
        return results
    unsure = [scale_confidence(item, _OPAQUE_CONFIDENCE) for item in opaque]
    return [replace(item, bytes_per_step=growth_bytes_per_step) for item in unsure]


def _rate(suspect: Suspect) -> float:
    return suspect.bytes_per_step or 0


@dataclass(frozen=True)
class Diagnosis:
    """Result of one diagnosis, from `first_step` to `step`. False if nothing grew."""

    first_step: int
    step: int
    suspects: tuple[Suspect, ...]
    """Most bytes first."""
    pause_s: float
    """Total time that the training thread was stopped."""
    method: DiagnosisMethod = "census"
    grown: tuple[StackAllocation, ...] = ()
    """Growth by call stack, most bytes first, if the method records stacks."""
    growth_bytes_per_step: int | None = None
    """Growth of all memory in use, tensors or not, if known."""
    are_tensors: bool = False
    """True if tensors are at least half of that growth."""
    native_bytes_per_step: int | None = None
    """Growth of memory that neither tensors nor Python's objects explain, if that is most of it."""
    is_cut_short: bool = False
    """True if time ran out: the suspects are less sure, and there may be more."""

    def __bool__(self) -> bool:
        return bool(self.suspects)


# -- classification -----------------------------------------------------------------------------


def classify(holder: HolderPath, growth: GroupGrowth) -> Kind:
    """Return the kind by the first test that matches the path, else by the container's type."""
    names = holder.name.identifiers if holder.name is not None else ()
    if names and names[0].endswith("_hooks"):
        return "hook"  # also those of parameters, which an optimizer leads to
    for test, kind in _PATH_TESTS:
        if any(map(test, holder.objects)):
            return kind
    if any("_hooks" in name for name in names):
        return "hook"
    if any(isinstance(item, FunctionType) for item in holder.below):
        return "closure"
    if growth.is_mostly_hidden:
        return "view"
    containers = (kind for type_, kind in _CONTAINERS if isinstance(holder.container, type_))
    return next(containers, "object")


def describe_container(container: Any, kind: Kind, below: Sequence[Any] = ()) -> str:
    """Return "list of 412", with the function of a coroutine or generator that it leads to.

    An object that refers to others of its class in turn is a "chain of Node by parent".
    """
    if kind == "cache":
        return "lru_cache"
    name = type(container).__name__
    if (link := link_of((*below[::-1], container))) is not None:
        return f"chain of {name} by {link}"
    waiting = next((item for item in below if isinstance(item, WAITING)), None)
    by = f", which {waiting.__qualname__}() waits for" if waiting is not None else ""
    try:
        return f"{name} of {len(container)}{by}"
    except TypeError:
        return name + by


def is_module_class(kind: type) -> bool:
    """Return True for `torch.nn.Module` and its subclasses, without importing torch."""
    return _has_base(kind, "torch.nn", lambda name: name == "Module")


def is_cache(item: Any) -> bool:
    return type(item).__name__ == "_lru_cache_wrapper"


def is_optimizer(item: Any) -> bool:
    """Return True for a `torch.optim.Optimizer`, without importing torch."""
    return _has_base(type(item), "torch.optim", lambda name: name == "Optimizer")


def _is_loader(item: Any) -> bool:
    return _has_base(type(item), "torch.utils.data", lambda name: "DataLoader" in name)


def _has_base(kind: type, package: str, matches: Callable[[str], bool]) -> bool:
    return any(
        matches(base.__name__) and base.__module__.startswith(package) for base in kind.__mro__
    )


_PATH_TESTS: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (is_cache, "cache"),
    (lambda item: isinstance(item, TracebackType | BaseException), "exception"),
    (is_optimizer, "optimizer"),
    (_is_loader, "dataloader"),
)
_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (list, "list"),
    (deque, "deque"),
    (dict, "dict"),
    (set, "set"),
)
