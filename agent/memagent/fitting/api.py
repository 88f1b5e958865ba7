"""`memagent.fit`: change a training step so that it fits a GPU, apply the changes, and prove it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from memagent.errors import EstimateError
from memagent.estimator.api import autocast_named, check_optimizer, check_step, device_fields
from memagent.estimator.request import TraceRequest
from memagent.fitting.budget import TIMEOUT_S, TraceBudget
from memagent.fitting.changes import ALLOWED
from memagent.fitting.plan import FitPlan
from memagent.fitting.search import Search, applied
from memagent.probe.nvml import DeviceNvml, EmptyNvml
from memagent.units import format_bytes


def fit(
    model: Any,
    optimizer: Any,
    batch: Any,
    *,
    targets: Any = None,
    loss: Callable[..., Any] | None = None,
    limit: int | str | None = None,
    gpu: str | None = None,
    autocast: Any = None,
    allow: Sequence[str] = ALLOWED,
    context_bytes: int | None = None,
    allocator: str | None = None,
    timeout_s: float = TIMEOUT_S,
    on_trace: Callable[[int, float], None] | None = None,
) -> FitPlan:
    """Change a training step so that it fits a GPU, and prove it by a trace before the first step.

        plan = memagent.fit(model, optimizer, batch, limit="24GiB")
        print(plan, plan.code, sep="\\n")
        for batch in loader:
            loss = plan.backward(batch)
            optimizer.step()
            optimizer.zero_grad()

    - model, optimizer: the live objects, in training mode, before the first step.
    - batch, targets, loss: as for `memagent.estimate`; `batch` is the largest that will come.
    - limit: bytes or "24GiB"; gpu: a card such as "RTX 4090". Default: the memory of the GPU here.
    - autocast: the dtype that the loop uses already.
    - allow: which changes may be made. "recompute" runs blocks again in backward, "loop" updates
      one parameter at a time, "parts" divides the batch, "host" keeps the optimizer's states on the
      host between steps and, if nothing else suffices, what forward keeps for backward, and
      "autocast" runs forward in bf16. All but the last leave gradients as they are, up to rounding.
      Batches of a model with batch norm aren't divided.
    - timeout_s: processor time of all traces. When it is spent, the cheapest changes proved so far
      are made. on_trace: called before each trace with its number and the seconds left.

    If nothing fits for sure, the changes of the least need are made, and `plan.estimate.outcome` is
    "tight". Raises EstimateError if even these won't fit (nothing is changed then), TraceError if
    the step can't be traced, and SettingError for an invalid size.
    """
    unknown = [name for name in allow if name not in ALLOWED]
    if unknown:
        raise EstimateError(f"allow has {unknown[0]!r}: use {', '.join(ALLOWED)}")
    if not hasattr(model, "named_parameters") or not hasattr(optimizer, "param_groups"):
        raise EstimateError("fit changes live objects: pass a torch.nn.Module and its optimizer")
    if not model.training:
        raise EstimateError("the model is in evaluation mode: call model.train() before fit")
    check_step(batch, loss, 1)
    check_optimizer(model, optimizer)
    request = TraceRequest(
        model=model,
        inputs=batch,
        targets=targets,
        optimizer=optimizer,
        loss=loss,
        autocast=autocast_named(autocast),
        timeout_s=timeout_s,
        **device_fields(
            "cuda",
            gpu=gpu,
            limit_bytes=memory_here("limit") if limit is None and gpu is None else limit,
            context_bytes=context_bytes,
            allocator=allocator,
        ),
    )
    return fit_request(request, allow=allow, on_trace=on_trace)


def fit_request(
    request: TraceRequest,
    *,
    allow: Sequence[str] = ALLOWED,
    on_trace: Callable[[int, float], None] | None = None,
) -> FitPlan:
    """Fit a request whose model and optimizer are live, and which has a limit.

    Its `timeout_s` is for all traces together.
    """
    search = Search(request, allow, TraceBudget(request.timeout_s, on_trace))
    fitting = search.cheapest()
    if fitting is None:
        raise EstimateError(_failure(search))
    changes, estimate = fitting
    return FitPlan(
        model=request.model,
        changes=changes,
        estimate=estimate,
        before=search.before,
        loss=request.loss,
        is_transformers=hasattr(request.model, "config") and isinstance(request.inputs, dict),
        device=request.device,
        undo=applied(changes, request.model, request.optimizer),
    )


def memory_here(option: str) -> int:
    """Return the bytes that this process can have of its GPU, those that it has included.

    Its context is among them if NVML can be read, since estimates count the whole context. Raises
    EstimateError without a GPU; it names the option that gives a limit.
    """
    import torch

    if not torch.cuda.is_available():
        raise EstimateError(f'there is no GPU here: pass {option}="24GiB" or gpu="RTX 4090"')
    free, _ = torch.cuda.mem_get_info()  # makes the context, if there is none
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    nvml = DeviceNvml(f"GPU-{uuid}") if uuid is not None else EmptyNvml()
    try:
        process_bytes = nvml.reading().process_bytes or 0
    finally:
        nvml.close()
    return int(free + max(process_bytes, torch.cuda.memory_reserved()))


def _failure(search: Search) -> str:
    before, least = search.before, search.smallest
    tensors = ("parameters", "gradients", "optimizer_state", "activations")
    largest = max(tensors, key=lambda name: least.components.get(name, 0))
    need, then, of_largest = map(
        format_bytes, (before.needed_bytes, least.needed_bytes, least.components[largest])
    )
    return (
        f"nothing makes it fit {format_bytes(before.limit_bytes or 0)}: it needs {need}, and "
        f"{then} with all changes, most of it {largest.replace('_', ' ')} ({of_largest}); LoRA, "
        "weights in bf16 or more GPUs would change more than fit does"
    )
