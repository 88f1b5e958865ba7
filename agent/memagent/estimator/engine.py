"""The estimator's engine: `estimate(request)` answers a request by formula or by trace.

The way of one estimate, from `memagent estimate --model path.py:factory` to the terminal:

 1. `cli.estimate.run` parses the options.
 2. `cli.estimate_request.build_request` builds an `EstimateRequest`: a `FormulaRequest` for a
    step that cannot be traced, a `TraceRequest` for all others.
 3. `estimate_and_trace` dispatches: a `FormulaRequest` goes to `formula.training.estimate_formula`
    (no torch), a `TraceRequest` to the next steps.
 4. `record` asks `trace.record_trace` for the events of the step.
 5. `trace.isolation` forks, and `trace.session` runs the step on fake tensors in the child.
 6. `estimate_trace` hands the trace to `from_trace.estimate_of`.
 7. `allocator.replay` replays its events through the simulated caching allocator.
 8. `intervals.intervals_of` adds the interval of each level.
 9. `advice.advise(request, estimate, trace)` adds changes that save memory, if asked to.
10. `cli.estimate_view.render` makes lines of the estimate.

A step that cannot be traced gets the formula's estimate of its config, or else the least that it
needs, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from memagent.errors import EstimateError, TraceError
from memagent.estimator.allocator import AllocatorConfig
from memagent.estimator.devices import ContextSize
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.families import ALIASES, FAMILIES
from memagent.estimator.formula.lower_bound import least_needs
from memagent.estimator.formula.releases import FUSED_SINCE
from memagent.estimator.formula.training import estimate_formula
from memagent.estimator.from_trace import estimate_of
from memagent.estimator.huggingface import ConfiguredModel
from memagent.estimator.input_specs import tensor_specs
from memagent.estimator.model_edits import CheckpointedModel
from memagent.estimator.request import EstimateRequest, FormulaRequest, TraceRequest
from memagent.estimator.trace.events import Trace
from memagent.estimator.trace.tracing import record_trace

_DISTINCT_FORWARDS = 2
"""Of an accumulated step: before the first there are no gradients, and all others are alike."""
TRAINER_CLIP_NORM = 1.0
"""The norm that the Trainer clips gradients to (`TrainingArguments.max_grad_norm`)."""


def estimate(request: EstimateRequest) -> Estimate:
    """Estimate a request. Raises EstimateError if its arguments are invalid."""
    return estimate_and_trace(request)[0]


def estimate_and_trace(request: EstimateRequest) -> tuple[Estimate, Trace | None]:
    """Estimate a request, and return the trace it is based on, if any, for `advice.advise`."""
    if isinstance(request, FormulaRequest):
        return _estimate_by_shape(request), None
    try:
        trace = record(request)
    except TraceError as error:
        return _estimate_untraceable(request, error), None
    return estimate_trace(request, trace), trace


def _estimate_by_shape(request: FormulaRequest) -> Estimate:
    by_shape = estimate_formula(request)
    reasons = {"trace": request.untraced, "remarks": list(request.remarks)}
    facts = {name: value for name, value in reasons.items() if value}
    return replace(by_shape, assumptions={**by_shape.assumptions, **facts})


def record(request: TraceRequest) -> Trace:
    """Trace the step. Raises TraceError if it cannot be traced."""
    is_checkpointed = request.checkpointing == "full"
    return record_trace(
        CheckpointedModel(request.model) if is_checkpointed else request.model,
        request.inputs,
        targets=request.targets,
        optimizer=_optimizer(request),
        loss=request.loss,
        autocast=request.autocast,
        scaler=request.scaler,
        accumulate=min(request.accumulation, _DISTINCT_FORWARDS),
        set_to_none=request.set_to_none,
        **_loop_options(request),
        device=request.device,
        timeout_s=request.timeout_s,
    )


def _loop_options(request: TraceRequest) -> dict[str, Any]:
    """Return what a loop does besides forward, backward and step; see `TrainingSpec`."""
    if request.loop != "trainer":
        return {"carry_output": request.loop == "plain"}
    return {
        "keep_output": False,
        "widen_output": request.autocast is not None,
        "clip_norm": TRAINER_CLIP_NORM,
    }


def _optimizer(request: TraceRequest) -> Any:
    """Return the optimizer; the Trainer's AdamW is fused if its library's default is."""
    is_default = request.loop == "trainer" and request.optimizer == "adamw"
    release = _versions().get("transformers", "0").partition(".")[0]
    is_fused = is_default and request.device == "cuda" and int(release) >= FUSED_SINCE[0]
    return "adamw_fused" if is_fused else request.optimizer


def estimate_trace(request: TraceRequest, trace: Trace) -> Estimate:
    """Estimate a request from its trace."""
    return estimate_of(
        trace,
        allocator=AllocatorConfig.parse(request.allocator, trace.torch_version or None),
        limit_bytes=request.limit_bytes,
        workspace_bytes=request.workspace_bytes,
        context_bytes=request.context_bytes,
        context_interval=request.context_interval,
        assumptions={
            "autocast": request.autocast or "none",
            "checkpointing": request.checkpointing or "none",
            "accumulation": request.accumulation,
            "loop": request.loop,
            "allocator": request.allocator or "default",
            "versions": _versions(),
            **({"remarks": list(request.remarks)} if request.remarks else {}),
            **_adapters(request.model),
        },
    )


def _adapters(model: Any) -> dict[str, str]:
    """Return the assumption on adapters, if the model is a config's and has some."""
    if not isinstance(model, ConfiguredModel) or model.lora_rank is None:
        return {}
    targets = model.lora_targets or "peft's choice"
    places = targets if isinstance(targets, str) else ", ".join(targets)
    options = {"quantised": model.quantised, "kbit_training": model.kbit_training}
    weights = {name: value for name, value in options.items() if value is not None}
    return {"lora": f"rank {model.lora_rank} at {places}", **weights}


def _versions() -> dict[str, str]:
    """Return the versions of the libraries at hand: what they do is what was traced."""
    versions = {}
    for name in ("torch", "transformers", "peft", "bitsandbytes"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _estimate_untraceable(request: TraceRequest, error: TraceError) -> Estimate:
    """Estimate by formula, or return the least that a step of the live model needs.

    Raises EstimateError if the model cannot even be built, and TraceError for a config that no
    formula knows.
    """
    reason = f"not traced{f' at {error.op}' if error.op else ''}: {error}"
    if request.fallback is not None:
        return _estimate_by_shape(replace(request.fallback, untraced=reason))
    kind = request.model.config["model_type"] if isinstance(request.model, ConfiguredModel) else ""
    if kind and ALIASES.get(kind, kind) not in FAMILIES:
        raise TraceError(
            f"{error}; the formula, which would answer instead, doesn't know {kind}", op=error.op
        ) from error
    model = _build_model(request.model, error)
    _check_initialized(model, error)
    bound = least_needs(
        [model],
        _build_optimizers(model, request.optimizer),
        inputs=tuple(tensor_specs(request.inputs)) or None,
        limit_bytes=request.limit_bytes,
        device_kind=request.device if request.device == "cuda" else "host",
        context=ContextSize(request.context_bytes, request.context_interval),
    )
    return replace(bound, assumptions={**bound.assumptions, "trace": reason})


def _check_initialized(model: Any, error: TraceError) -> None:
    from torch.nn.parameter import is_lazy

    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise EstimateError(
            "the model has lazy layers, whose parameters have no shape yet: run a batch through it "
            "in the factory"
        ) from error


def _build_model(model: Any, error: TraceError) -> Any:
    if hasattr(model, "named_parameters") and not isinstance(model, type):
        return model
    try:
        import torch

        from memagent.estimator.trace.session import build_model

        with torch.device("meta"):
            return build_model(model)
    except Exception as second:
        if str(second) in str(error):
            raise EstimateError(str(second)) from second
        raise EstimateError(
            f"the model can neither be traced ({error}) nor built ({second})"
        ) from second


def _build_optimizers(model: Any, optimizer: Any) -> Sequence[Any]:
    """Return an optimizer to read the state's size from; building one allocates nothing."""
    import torch

    if optimizer is None:
        return []
    if hasattr(optimizer, "param_groups"):
        return [optimizer]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if callable(optimizer):
        built = optimizer(trained)
        if not hasattr(built, "param_groups"):
            name = type(built).__name__
            raise EstimateError(f"the optimizer callable returns a {name}, not an optimizer")
        return [built]
    classes = {
        name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)
    }
    kind = classes.get(str(optimizer).lower())
    if kind is None:
        choices = ", ".join(sorted(classes))
        raise EstimateError(f"optimizer {optimizer!r} is not in torch.optim: use one of {choices}")
    return [kind(trained, lr=1e-3)]
