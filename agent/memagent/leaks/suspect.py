"""What a diagnosis says: suspects, and what to do about each kind.

Which kind of suspect a place is, by what lies on the way to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, TracebackType
from typing import Any, Literal, get_args

from msgspec.structs import replace

from memagent.leaks.census import Growth
from memagent.leaks.detectors.base import StackAllocation
from memagent.leaks.referrers import Place
from memagent.wire.messages import DiagnosisMethod, Suspect

Kind = Literal[
    "list", "dict", "deque", "set", "object", "variable", "graph", "hidden_state", "gradient", "buffer", "hook", "closure", "exception",
    "autograd_function", "cache", "view", "optimizer", "dataloader", "cycle", "worker", "copy_on_write", "host", "allocation",
]  # fmt: skip

_FIXES: dict[Kind, str] = {
    "list": "Append `x.detach().cpu()` or `x.item()`, and clear the list when its values have been used.",
    "dict": "Store `x.detach().cpu()` or `x.item()`, and delete the entries that have been used.",
    "deque": "Give the deque a `maxlen`, and append `x.detach().cpu()`.",
    "set": "Add numbers or `x.detach().cpu()`, and clear the set when its values have been used.",
    "object": "Drop what is no longer needed, or keep `x.detach().cpu()`.",
    "variable": "Write into a tensor of fixed size, or move what is done to the CPU.",
    "graph": "Add `loss.item()` or `loss.detach()`: a sum of losses with gradients keeps the graph of every step.",
    "hidden_state": "Carry `hidden.detach()` into the next step: else the graphs of all steps before hang on it.",
    "gradient": "Use `torch.autograd.grad` instead of `backward(create_graph=True)`, or set `.grad = None` after each step.",
    "buffer": "Preallocate the buffer and write into it, or keep running statistics instead of all values.",
    "hook": "Store `output.detach().cpu()` of one step only: clear before each forward, or remove the hook.",
    "closure": "Let the function take the tensor as an argument, or bind a number instead: a closure keeps all it mentions.",
    "exception": "Keep `str(error)`, or call `error.with_traceback(None)`: a traceback keeps all locals of its frames.",
    "autograd_function": "Use `ctx.save_for_backward(x)` instead of an attribute: autograd frees what is saved that way.",
    "cache": "Do not cache by tensor (each one is a new key): cache by a number or text, or give `maxsize` and call `cache_clear()`.",
    "view": "Keep `x.clone()`: a view, however small, keeps the whole tensor that it was cut from.",
    "optimizer": "Add a parameter group once, and make a new optimizer when parameters are replaced.",
    "dataloader": "Let the dataset return plain tensors, and keep no batches beside the loader.",
    "cycle": "Not a leak: a reference cycle that waits for the garbage collector. Break the cycle, or call `gc.collect()` now and then.",
    "worker": "Keep nothing in `__getitem__`: each worker has its own copy of the dataset, which grows until the epoch ends.",
    "copy_on_write": "Keep the samples in a numpy array or tensor: reading Python objects writes their counts, which copies their pages.",
    "host": "Drop the objects made at this line, or keep fewer of them.",
    "allocation": "Look at what keeps the result of this line: memory allocated here is still held steps later.",
}  # fmt: skip


def fix_for(kind: Kind) -> str:
    """What to do about a suspect of this kind, in one sentence or two. Raises KeyError for what is no kind."""
    return _FIXES[kind]


def build_suspect(
    file: str,
    line: int,
    function: str | None,
    holder: str,
    kind: Kind,
    bytes_per_step: int | None,
    confidence: float,
) -> Suspect:
    """Return a suspect with the fix for its kind."""
    return Suspect(
        file=file,
        line=line,
        function=function[:200] if function else None,
        holder=holder,
        kind=kind,
        bytes_per_step=bytes_per_step,
        confidence=confidence,
        fix=fix_for(kind),
    )


def scale_confidence(suspect: Suspect, factor: float) -> Suspect:
    """Return the suspect with its confidence multiplied by `factor`."""
    return replace(suspect, confidence=round(suspect.confidence * factor, 2))


@dataclass(frozen=True)
class Diagnosis:
    """`suspects`, most bytes first; empty where nothing grew. From `first_step` to `step`. The pause is what it cost the training thread
    altogether, in seconds."""

    first_step: int
    step: int
    suspects: tuple[Suspect, ...]
    pause_s: float
    method: DiagnosisMethod = "census"
    grown: tuple[StackAllocation, ...] = ()
    """The stacks whose allocations piled up, most bytes first, where `method` has recorded stacks."""
    growth_bytes_per_step: int | None = None
    """By how much memory in use grew meanwhile, tensors or not, where that is known."""
    is_cut_short: bool = False
    """Whether something was given up because the time for it was up: the suspects are less sure, and there may be more."""

    def __bool__(self) -> bool:
        return bool(self.suspects)


KINDS: tuple[Kind, ...] = get_args(Kind)


def kind_of(place: Place, growth: Growth) -> Kind:
    """The first test that something on the way passes, else the container's type."""
    passed = place.passed
    for test, kind in _TESTS:
        if any(map(test, passed)):
            return kind
    if place.name is not None and any("_hooks" in name for name in place.name.identifiers):
        return "hook"
    if any(isinstance(item, FunctionType) for item in place.below):
        return "closure"
    if growth.keeps_more:
        return "view"
    return next((name for kind, name in _CONTAINERS if isinstance(place.container, kind)), "object")


def _is_cache(item: Any) -> bool:
    return type(item).__name__ == "_lru_cache_wrapper"


def is_module(item: Any) -> bool:
    return is_module_class(type(item))


def is_module_class(kind: type) -> bool:
    return any(
        base.__name__ == "Module" and base.__module__.startswith("torch.nn")
        for base in kind.__mro__
    )


def _is_optimizer(item: Any) -> bool:
    return any(
        kind.__name__ == "Optimizer" and kind.__module__.startswith("torch.optim")
        for kind in type(item).__mro__
    )


def _is_loader(item: Any) -> bool:
    return any(
        "DataLoader" in kind.__name__ and kind.__module__.startswith("torch.utils.data")
        for kind in type(item).__mro__
    )


_TESTS: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
    (_is_cache, "cache"),
    (lambda item: isinstance(item, TracebackType | BaseException), "exception"),
    (_is_optimizer, "optimizer"),
    (_is_loader, "dataloader"),
)
_CONTAINERS: tuple[tuple[type, Kind], ...] = (
    (list, "list"), (deque, "deque"), (dict, "dict"), (set, "set"),
)  # fmt: skip


def can_grow(place: Place) -> bool:
    """A deque or cache of fixed size comes to an end."""
    container = place.container
    if isinstance(container, deque) and container.maxlen is not None:
        return False
    for item in place.passed:
        parameters = getattr(item, "cache_parameters", None) if _is_cache(item) else None
        if (
            isinstance(parameters, BuiltinFunctionType | FunctionType)
            and parameters()["maxsize"] is not None
        ):
            return bool(parameters()["maxsize"] > 1024)
    return True


def what_is(container: Any, kind: Kind) -> str:
    """ "list of 412"."""
    if kind == "cache":
        return "lru_cache"
    name = type(container).__name__
    try:
        return f"{name} of {len(container)}"
    except TypeError:
        return name
