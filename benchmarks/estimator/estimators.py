"""Who predicts: ours and the peers. Each is given a case and says what its two steps will hold at their most.

Adding one is a function and an entry in `ESTIMATORS`. A function raises `LeftOutError` where the case is outside of what it claims to
do; other errors are its failures, and are counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from benchmarks.estimator import zoo
from benchmarks.estimator.workload import STEPS, Case, Where, Workload, train_step
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import TrainingSpec


class LeftOutError(Exception):
    """The estimator makes no claim about such a case, or is not there."""


@dataclass(frozen=True)
class Prediction:
    """Bytes. `intervals` are 90 % ones by level, where the estimator says so itself."""

    allocated_bytes: int
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    intervals: dict[str, tuple[int, int]] = field(default_factory=dict)


def told(answer: Estimate) -> Prediction:
    """What one of our own estimates says."""
    return Prediction(
        answer.peak_allocated_bytes,
        answer.peak_reserved_bytes,
        answer.peak_device_bytes,
        dict(answer.intervals),
    )


def ours_by_trace(case: Case, where: Where) -> Prediction:
    """Two steps on fake tensors, every storage followed, the events replayed by the allocator simulator."""
    from benchmarks.estimator import traced

    return traced.predict(case, where)


def ours_by_formula(case: Case, where: Where) -> Prediction:
    """What `attach` says at once: sizes read off the model and its optimizer, activations by module and input shape."""
    from memagent.estimator.formula import from_model

    workload = meta(case)
    shapes = tuple(
        (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for tensor in workload.batch()[0].values()
    )
    kind = "cuda" if where.kind == "cuda" else "host"
    return told(
        from_model.predict([workload.model], [workload.optimizer], inputs=shapes, device_kind=kind)
    )


def ours_by_shape(case: Case, where: Where, spec: TrainingSpec | None = None) -> Prediction:
    """The formula from a transformer's shape and how it is trained; nothing of the model's code."""
    from benchmarks.estimator import shapes

    return shapes.predict(case, where, spec)


def mem_tracker(case: Case, _: Where) -> Prediction:
    """torch.distributed._tools.mem_tracker on fake CPU tensors, two steps, as its documentation does it."""
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
    """`accelerate estimate-memory`, its column "Training using Adam (Peak vRAM)".

    Its own function where it is installed. Its rule: in fp32 the largest of weights, gradients, twice the weights for the optimizer and
    four times for the step; in half precision twice the fp32 weights.
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
    """DeepSpeed's `estimate_zero2_model_states_mem_needs`, one GPU, no offload: 2 + 18 bytes a parameter. Model states only.

    The rule is written out (deepspeed 0.18, runtime/zero/stage_1_and_2.py); the library itself needs a compiler to install.
    """
    return Prediction(20 * _count(meta(case).model))


def deepspeed_zero3_rule(case: Case, _: Where) -> Prediction:
    """`estimate_zero3_model_states_mem_needs`, one GPU, no offload: 18 bytes a parameter and 4 of the largest layer (stage3.py)."""
    model = meta(case).model
    largest = max(
        sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()
    )
    return Prediction(18 * _count(model) + 4 * largest)


def sixteen_bytes(case: Case, _: Where) -> Prediction:
    """Parameters x 16: what everybody reckons for Adam in mixed precision."""
    return Prediction(16 * _count(meta(case).model))


ESTIMATORS: dict[str, Callable[[Case, Where], Prediction]] = {
    "memagent, trace": ours_by_trace,
    "memagent, formula": ours_by_formula,
    "memagent, shape": ours_by_shape,
    "torch MemTracker": mem_tracker,
    "accelerate": accelerate_rule,
    "DeepSpeed ZeRO-2": deepspeed_zero2_rule,
    "DeepSpeed ZeRO-3": deepspeed_zero3_rule,
    "parameters x 16": sixteen_bytes,
}


def meta(case: Case) -> Workload:
    """The case without data: shapes and dtypes only, at any size in no memory."""
    with torch.device("meta"), _no_initialisation():
        return zoo.build(case, "meta")


def warm_up(cases: Iterable[Case]) -> None:
    """Imports, here and once, what the forked processes would each import by themselves: a model of each family is built without data."""
    torch.set_num_threads(1)
    for case in {case.family: case for case in cases}.values():
        if zoo.missing(case) is None:
            meta(case)


@contextlib.contextmanager
def _no_initialisation() -> Iterator[None]:
    """Weights that hold no data need no numbers."""
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
    """Parameters, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
