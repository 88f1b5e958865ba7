"""Estimators: memagent's and the peers. Each gets a case and returns the peak of its two steps.

To add one, write a function and an entry in `ESTIMATORS`. A function raises `LeftOutError` for a
case outside its claims; other errors count as failures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any
from unittest import mock

import torch
from torch import nn

from benchmarks.estimator import zoo
from benchmarks.estimator.workload import STEPS, Case, Where, Workload, train_step
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec


class LeftOutError(Exception):
    """The estimator makes no claim about this kind of case, or is not installed."""


@dataclass(frozen=True)
class Prediction:
    """Predicted bytes. `intervals` are 90 % intervals by level, if the estimator gives them.

    Of ours, also what comes and goes within the step, the context, and the group of trainings that
    the intervals are of.
    """

    allocated_bytes: int
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    intervals: dict[str, tuple[int, int]] = field(default_factory=dict)
    passing_bytes: int | None = None
    context_bytes: int | None = None
    group: str = ""


def prediction_of(answer: Estimate) -> Prediction:
    """Convert one of memagent's estimates."""
    return Prediction(
        answer.peak_allocated_bytes,
        answer.peak_reserved_bytes,
        answer.peak_device_bytes,
        dict(answer.intervals),
        answer.passing_bytes,
        answer.components.get("context"),
        answer.error_group,
    )


def ours_by_trace(case: Case, where: Where) -> Prediction:
    """Trace two steps on fake tensors, follow every storage, and replay the events in the allocator
    simulator.
    """
    from benchmarks.estimator import traced

    return traced.predict(case, where)


def ours_by_formula(case: Case, where: Where, spec: TrainingSpec | None = None) -> Prediction:
    """Apply the formula to a transformer's shape and training setup, without the model's code."""
    from benchmarks.estimator import shapes

    return shapes.predict(case, where, spec)


def mem_tracker(case: Case, _: Where) -> Prediction:
    """Run torch.distributed._tools.mem_tracker on fake CPU tensors for two steps, as documented."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        workload = zoo.build(case)
        tracker = MemTracker()
        tracker.track_external(workload.model, workload.optimizer)

        def enter(phase: str) -> None:
            if phase == "forward":
                tracker.reset_mod_stats()  # it wants to be told of another iteration

        with tracker:
            for _ in range(STEPS):
                train_step(workload, enter)
    peaks = tracker.get_tracker_snapshot("peak")
    return Prediction(max(peak["Total"] for peak in peaks.values()))


def accelerate_rule(case: Case, _: Where) -> Prediction:
    """Return the column "Training using Adam (Peak vRAM)" of `accelerate estimate-memory`.

    Uses its own function if it is installed. Its rule: in fp32 the largest of weights, gradients,
    twice the weights for the optimizer and four times for the step; in half precision twice the
    fp32 weights.
    """
    weights = sum(_bytes(tensor) for tensor in _named(meta(case).model).values())
    half = case.autocast is not None or case.dtype == "bfloat16"
    fp32 = (
        2 * weights if case.dtype == "bfloat16" else weights
    )  # it is given the model as the hub's config makes it
    if find_spec("accelerate") is None:
        return Prediction((2 if half else 4) * fp32)
    from accelerate.commands.estimate import estimate_training_usage

    return Prediction(
        int(max(estimate_training_usage(fp32, "bfloat16" if half else "float32").values()))
    )


def deepspeed_zero2_rule(case: Case, _: Where) -> Prediction:
    """Apply DeepSpeed's `estimate_zero2_model_states_mem_needs` for one GPU without offload: 2 + 18
    bytes a parameter, model states only.

    The rule is copied from deepspeed 0.18, runtime/zero/stage_1_and_2.py; the library needs a
    compiler to install.
    """
    return Prediction(20 * _count(meta(case).model))


def deepspeed_zero3_rule(case: Case, _: Where) -> Prediction:
    """Apply `estimate_zero3_model_states_mem_needs` for one GPU without offload: 18 bytes a
    parameter and 4 of the largest layer (stage3.py).
    """
    model = meta(case).model
    largest = max(
        sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()
    )
    return Prediction(18 * _count(model) + 4 * largest)


def kitsune(case: Case, _: Where) -> Prediction:
    """Ask torch-kitsune's `predict_memory`, which knows neither autocast, adapters nor
    checkpointing.
    """
    if find_spec("kitsune") is None:
        raise LeftOutError("torch-kitsune is not installed")
    from kitsune.predict import predict_memory

    workload = meta(case)
    batch, *shape = next(iter(workload.batch()[0].values())).shape
    predicted = predict_memory(
        workload.model,
        tuple(shape),
        batch_size=batch,
        dtype=case.dtype,
        optimizer="sgd" if case.optimizer == "sgd" else "adamw",
        training=True,
    )
    return Prediction(int(predicted.total_bytes))


def sixteen_bytes(case: Case, _: Where) -> Prediction:
    """Return parameters x 16, the rule of thumb for Adam in mixed precision."""
    return Prediction(16 * _count(meta(case).model))


ESTIMATORS: dict[str, Callable[[Case, Where], Prediction]] = {
    "memagent, trace": ours_by_trace,
    "memagent, formula": ours_by_formula,
    "torch MemTracker": mem_tracker,
    "accelerate": accelerate_rule,
    "DeepSpeed ZeRO-2": deepspeed_zero2_rule,
    "DeepSpeed ZeRO-3": deepspeed_zero3_rule,
    "torch-kitsune": kitsune,
    "parameters x 16": sixteen_bytes,
}


def meta(case: Case) -> Workload:
    """Build the case without data: shapes and dtypes only, so any size takes no memory."""
    with torch.device("meta"), _no_initialisation():
        return zoo.build(case, "meta")


def warm_up(cases: Iterable[Case]) -> None:
    """Import once in the parent what every forked process would import, by building a model of each
    family without data.
    """
    torch.set_num_threads(1)
    for case in {case.family: case for case in cases}.values():
        if zoo.missing(case) is None:
            meta(case)


def warm_up_without_cuda(case: Case) -> None:
    """Import what the case needs, for forks that use the GPU. What fails here fails there again.

    Libraries that ask for a GPU meanwhile would start CUDA, which no fork can use then.
    """
    without_cuda = mock.patch.object(torch.cuda, "is_available", return_value=False)
    with without_cuda, contextlib.suppress(Exception):
        warm_up([case])
    with contextlib.suppress(AttributeError):  # not every torch has it
        torch.utils._triton.has_triton.cache_clear()


@contextlib.contextmanager
def _no_initialisation() -> Iterator[None]:
    """Skip initialisation: weights without data need no numbers."""
    names = [name for name in vars(nn.init) if name.endswith("_") and not name.startswith("_")]
    originals = {name: getattr(nn.init, name) for name in names}

    def leave(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    for name in names:
        setattr(nn.init, name, leave)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(nn.init, name, original)


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(model.named_parameters()) | dict(model.named_buffers())


def _count(model: nn.Module) -> int:
    """Return the parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
