"""Values of small tensors on the rehearsal device, whose kernels compute nothing.

1. The CUDA operator runs first, for its memory. Then the operator runs on the CPU, on views of the
   same bytes, if all its tensors are small; its results are copied into those of the first.
2. Results that aren't computed are zeros. Otherwise a tensor would show what its block held before.
3. An operator whose sizes depend on values (`nonzero`, a boolean mask) runs on the CPU alone; the
   device gets tensors of these sizes.
4. If the CUDA operator fails since it read such a value, the result is that of the CPU.
5. What a higher-order operator calls isn't computed, such as random numbers of a DTensor.
6. Autograd's threads inherit the mode of the thread that called `backward`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode

from memagent.estimator.trace.kernels import scratch_bytes
from memagent.rehearsal.accumulation import ADD, accumulate
from memagent.rehearsal.choices import spread_choices
from memagent.rehearsal.host_views import fill_with_zeros, host_view, replaced, tensors_in

MAX_BYTES = 1 << 18
"""Size of the largest tensor that is computed: its operators take milliseconds on a CPU."""
MAX_PLACES_BYTES = 1 << 27
"""The same of masks and places, which sizes depend on: 8,192 tokens of 8 among 129 experts."""
_PLACES = (torch.bool, torch.int64)
MASKED_GRADIENT = torch.ops.aten.masked_scatter_backward.default
_COMPUTED_NAMESPACES = ("aten", "prims")
_UNCOMPUTED = (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "record_stream",
    "resize_", "resize_as_", "set_", "_local_scalar_dense", "pin_memory", "_pin_memory", "detach",
    "is_pinned", "lift_fresh", "_cudnn_init_dropout_state",
)  # fmt: skip
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")

Call = Callable[..., Any]
OnRead = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """The treatment of an operator."""

    name: str
    is_view: bool
    is_computed: bool
    is_random: bool
    is_indexing: bool
    has_unknown_sizes: bool
    is_collective: bool
    """The device has written its results."""
    is_convolution: bool = False

    @classmethod
    def of(cls, operator: Any) -> Plan:
        if isinstance(operator, HigherOrderOperator):
            return cls(operator._name, *(False,) * 6)
        name = operator.overloadpacket.__name__
        is_indexing = name in _INDEXING
        return cls(
            name=name,
            is_view=_is_view(operator),
            is_computed=operator.namespace in _COMPUTED_NAMESPACES and name not in _UNCOMPUTED,
            is_random=torch.Tag.nondeterministic_seeded in operator.tags,
            is_indexing=is_indexing,
            has_unknown_sizes=torch.Tag.dynamic_output_shape in operator.tags and not is_indexing,
            is_collective="c10d" in operator.namespace,
            is_convolution="convolution" in name,
        )


def _is_view(operator: Any) -> bool:
    """Return whether each result shares its input's bytes, which the operator leaves alone."""
    results = operator._schema.returns
    infos = [result.alias_info for result in results]
    return bool(results) and all(info is not None and not info.is_write for info in infos)


class SmallValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes operators on small tensors; `on_read` is called if the host reads the device."""

    supports_higher_order_operators = True

    def __init__(self, on_read: OnRead = lambda _name: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plans: dict[Any, Plan] = {}
        self._on_read = on_read
        self.tunes_convolutions = False
        """True once a convolution has run with `torch.backends.cudnn.benchmark`."""

    @property
    def has_convolutions(self) -> bool:
        """Return whether cuDNN was needed, some of whose workspaces a rehearsal leaves out."""
        return any(plan.is_convolution for plan in self._plans.values())

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile work below this mode, which sees the compiled code's other calls."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if torch._C._len_torch_dispatch_stack():  # fake tensors, of torch.compile or DTensor
            return func(*args, **keywords)
        if any(map(_has_own_dispatch, types)):
            return NotImplemented  # DTensor and others: the mode sees the tensors inside
        plan = self._plans.get(func)
        if plan is None:
            plan = self._plans[func] = Plan.of(func)
        if plan.is_convolution:
            self.tunes_convolutions |= torch.backends.cudnn.benchmark
        inputs = [*tensors_in(args), *tensors_in(keywords)]
        on_device = any(tensor.is_cuda for tensor in inputs)
        if plan.is_view or not (on_device or _is_factory(keywords)):
            return func(*args, **keywords)
        if plan.is_indexing:
            args = (args[0], self._with_known_masks(args[1]), *args[2:])
            inputs = list(tensors_in(args))
        elif plan.has_unknown_sizes:
            self._on_read(plan.name)
            return _computed_alone(func, args, keywords, plan)
        elif func in (ADD, MASKED_GRADIENT):
            result = self._otherwise(func, args, keywords, inputs)
            if result is not None:
                return result
        return self._both(func, args, keywords, plan, inputs)

    def _otherwise(
        self, func: Call, args: tuple[Any, ...], keywords: dict[str, Any], inputs: list[Any]
    ) -> torch.Tensor | None:
        """Return the result of other operators than this one, or None."""
        if func is ADD:
            return None if all(map(_is_small, inputs)) else accumulate(args, keywords)
        with self:
            return _masked_gradient(*args)

    def _both(
        self,
        func: Call,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        plan: Plan,
        inputs: list[torch.Tensor],
    ) -> Any:
        is_small = plan.is_computed and all(map(_is_small, inputs))
        try:
            result = func(*args, **keywords)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if not is_small:
                raise
            return _computed_alone(func, args, keywords, plan)
        if plan.is_convolution:
            _allocate_scratch(f"aten::{plan.name}", args, result)
        outputs = list(tensors_in(result))
        if plan.name == "_local_scalar_dense" or any(not tensor.is_cuda for tensor in outputs):
            self._on_read(plan.name)
        if plan.is_collective:
            return result
        if not outputs:
            return _plain_result(func, args, keywords, plan, result) if is_small else result
        has_values = (
            is_small
            and all(map(_is_small, outputs))
            and _copy_results(outputs, _on_host(func, args, keywords, plan))
        )
        if not has_values:
            for tensor in _fresh(outputs, inputs):
                fill_with_zeros(tensor)
        spread_choices(plan.name, args, result, has_scores=has_values)
        return result

    def _with_known_masks(self, indices: Any) -> list[Any]:
        """Return `indices` with masks replaced by the indices of their true elements."""
        known: list[Any] = []
        for index in indices:
            if index is not None and index.is_cuda and index.dtype in (torch.bool, torch.uint8):
                self._on_read("index")
                places = host_view(index).nonzero(as_tuple=True)
                known.extend(_to_device(place, index.device) for place in places)
            else:
                known.append(index)
        return known


def _allocate_scratch(operator: str, args: tuple[Any, ...], output: Any) -> None:
    """Allocate for a moment what cuDNN's kernel would; without that it takes a smaller kernel."""
    for tensor in tensors_in(output):
        with suppress(torch.OutOfMemoryError):
            size = scratch_bytes(operator, args, tensor)
            torch.empty(size, dtype=torch.uint8, device=tensor.device)


def _masked_gradient(
    gradient: torch.Tensor, mask: torch.Tensor, sizes: Sequence[int]
) -> torch.Tensor:
    """Return the gradient of `masked_scatter`'s source, in the steps of torch's operator.

    That one reads a size from the device, and the mode doesn't see its steps.
    """
    selected = gradient.masked_select(mask)
    missing = math.prod(sizes) - selected.numel()
    return torch.cat([selected, gradient.new_zeros(missing)]).view(sizes)


def _has_own_dispatch(kind: type) -> bool:
    own = getattr(kind, "__torch_dispatch__", None)
    return own not in (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


def _is_factory(keywords: dict[str, Any]) -> bool:
    device = keywords.get("device")
    return device is not None and torch.device(device).type == "cuda"


def _is_small(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.numel() * tensor.element_size()
        <= (MAX_PLACES_BYTES if tensor.dtype in _PLACES else MAX_BYTES)
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _on_host(func: Call, args: Any, keywords: dict[str, Any], plan: Plan) -> Any:
    """Return the operator's result on the CPU, or None if there it has no such operator."""

    def host(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return host_view(leaf) if leaf.is_cuda else leaf
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return None if isinstance(leaf, torch.Generator) else leaf

    state = torch.get_rng_state() if plan.is_random else None
    try:
        return func(*replaced(args, host), **replaced(keywords, host))
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return None
    finally:
        if state is not None:  # the script's own random numbers stay as they are
            torch.set_rng_state(state)


def _copy_results(outputs: list[torch.Tensor], result: Any) -> bool:
    """Copy the CPU's results to the outputs; return False if they don't match."""
    results = list(tensors_in(result))
    if [tensor.size() for tensor in results] != [tensor.size() for tensor in outputs]:
        return False
    for source, target in zip(results, outputs, strict=True):
        place = host_view(target) if target.is_cuda else target
        if place.data_ptr() != source.data_ptr():
            place.copy_(source)
    return True


def _plain_result(
    func: Call, args: Any, keywords: dict[str, Any], plan: Plan, otherwise: Any
) -> Any:
    """Return the CPU's answer of an operator such as `equal`, which has no tensors as results."""
    if otherwise is None:
        _on_host(func, args, keywords, plan)  # it changes its arguments
        return None
    result = _on_host(func, args, keywords, plan)
    return otherwise if result is None else result


def _fresh(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs whose memory belongs to none of the inputs."""
    old = {tensor.untyped_storage().data_ptr() for tensor in inputs if _has_storage(tensor)}
    return [
        tensor
        for tensor in outputs
        if tensor.is_cuda and _has_storage(tensor)
        and tensor.untyped_storage().data_ptr() not in old
    ]  # fmt: skip


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _computed_alone(func: Call, args: Any, keywords: dict[str, Any], plan: Plan) -> Any:
    """Return the CPU's result in new tensors of the device."""
    device = next(tensor.device for tensor in tensors_in([args, keywords]) if tensor.is_cuda)
    result = _on_host(func, args, keywords, plan)
    if result is None:
        return func(*args, **keywords)

    def back(leaf: Any) -> Any:
        return _to_device(leaf, device) if isinstance(leaf, torch.Tensor) else leaf

    return replaced(result, back)


def _to_device(source: torch.Tensor, device: torch.device) -> torch.Tensor:
    target = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device=device)
    if _is_small(source):
        host_view(target).copy_(source)
    else:
        fill_with_zeros(target)
    return target
