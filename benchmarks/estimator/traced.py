"""Our tracer and allocator simulator, asked as `memagent.estimate` asks them. Raises LeftOutError where they are not there."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from benchmarks.estimator import ranks, zoo
from benchmarks.estimator.estimators import LeftOutError, Prediction, meta
from benchmarks.estimator.optimizers import optimizer_named
from benchmarks.estimator.workload import STEPS, Case


def predict(case: Case, device: str) -> Prediction:
    """On the CPU the sum of live bytes; on CUDA what the simulated allocator holds, which rounds each block up."""
    trace = traced(case, device)
    if device == "cpu":
        return Prediction(trace.peak_bytes)
    held = _replayed(trace.events)
    return Prediction(held.peak_allocated, reserved_bytes=held.peak_reserved)


def traced(case: Case, device: str) -> Any:
    """The `Trace` of the case, built by the tracer itself from a factory: no real tensor is made."""
    try:
        from memagent.estimator.trace import record_trace
    except ImportError:
        raise LeftOutError("not built") from None
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


def _replayed(events: Iterable[Any]) -> Any:
    try:
        from memagent.estimator.allocator import AllocatorConfig, replay
    except ImportError:
        return _Sum.of(events)
    return replay(events, AllocatorConfig())


@dataclass
class _Sum:
    """What stands for the simulator where it is not built: blocks rounded to 512 bytes, nothing known of segments."""

    peak_allocated: int
    peak_reserved: int | None = None

    @classmethod
    def of(cls, events: Iterable[Any]) -> _Sum:
        sizes = (-(-event.size_bytes // 512) * 512 * (1 if event.kind == "alloc" else -1) for event in events)
        return cls(max(itertools.accumulate(sizes), default=0))


def _described(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in tensors.items()}


def _plain(parameters: Iterable[Any]) -> list[nn.Parameter]:
    """Parameters, whether they come alone or with their names."""
    return [item[1] if isinstance(item, tuple) else item for item in parameters]
