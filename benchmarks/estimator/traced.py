"""memagent's tracer and allocator simulator, called as `memagent.estimate` calls them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import nn

from benchmarks.estimator import ranks, zoo
from benchmarks.estimator.estimators import Prediction, meta, prediction_of
from benchmarks.estimator.optimizers import optimizer_named
from benchmarks.estimator.workload import STEPS, Case, Where
from memagent.estimator.allocator import AllocatorConfig
from memagent.estimator.devices import CUBLAS_HANDLES, context_of, cublas_workspace_bytes
from memagent.estimator.from_trace import estimate_of
from memagent.estimator.trace.tracing import record_trace


def predict(case: Case, where: Where) -> Prediction:
    """Return the sum of live bytes on the CPU, or the simulated allocator's answer for a CUDA
    device of this size.
    """
    trace = traced(case, where.kind)
    if where.torch_version is not None:
        trace = replace(trace, torch_version=where.torch_version)
    if where.kind == "cpu":
        return prediction_of(estimate_of(trace))
    context = context_of(where.context_bytes, where.capability)
    result = estimate_of(
        trace,
        allocator=AllocatorConfig.parse(case.allocator, trace.torch_version or None),
        limit_bytes=where.total_bytes,
        workspace_bytes=CUBLAS_HANDLES * cublas_workspace_bytes(where.capability),
        context_bytes=context.size_bytes,
        context_interval=context.interval,
    )
    return prediction_of(result)


def traced(case: Case, device: str) -> Any:
    """Return the `Trace` of the case. The tracer builds it from a factory, so no real tensor
    exists.
    """
    workload = meta(case)
    if case.parallel != "none":
        ranks.mesh(device)
    inputs, targets = workload.batch()
    return record_trace(
        lambda: zoo.build(case, None).model,
        _described(inputs),
        targets=_described(targets) or None,
        optimizer=lambda parameters: optimizer_named(case.optimizer, _plain(parameters)),
        loss=workload.loss,
        autocast=case.autocast,
        scaler=case.scaler,
        clip_norm=case.clip_norm,
        device=device,
        steps=STEPS,
        accumulate=case.accumulation,
        keep_output=case.holds_output,
    )


def _described(tensors: dict[str, Any]) -> dict[str, Any]:
    return {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in tensors.items()
    }


def _plain(parameters: Iterable[Any]) -> list[nn.Parameter]:
    """Return the parameters, given alone or with their names."""
    return [item[1] if isinstance(item, tuple) else item for item in parameters]
