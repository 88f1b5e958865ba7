"""`memagent.estimate`: what a training step of this model will need, before it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.advice.by_trace import advise
from memagent.estimator.devices import (
    CUBLAS_WORKSPACE_BYTES,
    HANDLES,
    Context,
    context_of,
    gpu_named,
)
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.from_model import predict
from memagent.estimator.request import EstimateRequest
from memagent.estimator.trace import TraceError
from memagent.estimator.traced_config import question_for_config
from memagent.estimator.validation import (
    autocast_named,
    check_optimizer,
    check_step,
    checkpointing_named,
    shapes_in,
)
from memagent.units import parse_bytes


def estimate(
    model: Any,
    inputs: Any,
    *,
    optimizer: Any = "adamw",
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
    autocast: Any = None,
    checkpointing: Literal["full"] | bool | None = None,
    accumulate: int = 1,
    set_to_none: bool = True,
    device: str = "cuda",
    gpu: str | None = None,
    limit_bytes: int | str | None = None,
    context_bytes: int | None = None,
    allocator: str | None = None,
    advice: bool = False,
    timeout_s: float = 60.0,
) -> Estimate:
    """What a training step of `model` on `inputs` needs, without running it: it is traced on fake tensors in a process of its own.

    model: a torch.nn.Module (left as it is), a callable that makes one, or "path.py:factory". inputs: what it is called with (tensor,
    tuple, dict), or `(shape, dtype name)` in place of a tensor, such as `((8, 1024), "int64")`. optimizer: one made for the model, a name
    in torch.optim, a callable that takes the parameters, or None. loss: `loss(output, targets)`; without one the model's own
    (`output.loss`). autocast: None, "bf16" or "fp16", or torch's dtype. checkpointing: "full" or True recomputes each repeated block.
    set_to_none: as the script's `zero_grad` has it. device: "cuda" (no GPU needed) or "cpu". gpu: a name such as "a100", which brings
    limit and context. limit_bytes: bytes or "24GiB". allocator: as in PYTORCH_CUDA_ALLOC_CONF, by default that variable. advice: also
    try what would save memory (a trace for each change).

    A model that cannot be traced gets the formula's answer, and `assumptions["trace"]` says what stopped it. Raises EstimateError for
    arguments that make no sense, and SettingError for a size that is none.
    """
    check_step(inputs, loss, accumulate)
    check_optimizer(model, optimizer)
    question = EstimateRequest(
        model=model,
        inputs=inputs,
        targets=targets,
        optimizer=optimizer,
        loss=loss,
        autocast=autocast_named(autocast),
        checkpointing=checkpointing_named(checkpointing),
        accumulate=accumulate,
        set_to_none=set_to_none,
        timeout_s=timeout_s,
        **on_device(
            device,
            gpu=gpu,
            limit_bytes=limit_bytes,
            context_bytes=context_bytes,
            allocator=allocator,
        ),
    )
    return answer(question, advice=advice)


def estimate_config(
    config: str | Path | Mapping[str, Any],
    *,
    device: str = "cuda",
    gpu: str | None = None,
    limit_bytes: int | str | None = None,
    context_bytes: int | None = None,
    allocator: str | None = None,
    advice: bool = False,
    **training: Any,
) -> Estimate:
    """The same for a Hugging Face config.json (path, folder or content), with the class of the installed transformers traced.

    `training` is as for `configured.question_for_config`: batch, sequence, precision, optimizer, checkpointing, lora_rank and so on.
    Raises EstimateError where transformers is not installed or has no such model; the formula (`configs.from_config`) may know it.
    """
    where = on_device(
        device, gpu=gpu, limit_bytes=limit_bytes, context_bytes=context_bytes, allocator=allocator
    )
    return answer(question_for_config(config, **training, **where), advice=advice)


def on_device(
    device: str = "cuda",
    *,
    gpu: str | None = None,
    limit_bytes: int | str | None = None,
    context_bytes: int | None = None,
    allocator: str | None = None,
) -> dict[str, Any]:
    """The fields of a `EstimateRequest` that tell of the device; see `estimate`. Raises EstimateError and SettingError."""
    card = gpu_named(gpu) if gpu is not None else None
    if device not in ("cuda", "cpu"):
        raise EstimateError(f'device is {device!r}: give "cuda" (no GPU is needed) or "cpu"')
    context = context_of(context_bytes) if device == "cuda" else Context(context_bytes or 0, None)
    return {
        "device": device,
        "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        if allocator is None
        else allocator,
        "limit_bytes": parse_bytes(limit_bytes)
        if limit_bytes is not None
        else card.total_bytes
        if card
        else None,
        "workspace_bytes": HANDLES * (card.cublas_bytes if card else CUBLAS_WORKSPACE_BYTES)
        if device == "cuda"
        else 0,
        "context_bytes": context.size_bytes,
        "context_interval": context.interval,
    }


def answer(question: EstimateRequest, *, advice: bool = False) -> Estimate:
    """The question traced; the formula's answer where it can't be, with the reason."""
    try:
        trace = question.trace()
    except TraceError as error:
        return by_formula(question, error)
    found = question.estimate(trace)
    return advise(question, trace, found) if advice else found


def by_formula(question: EstimateRequest, error: TraceError) -> Estimate:
    """The formula's answer for a model that could not be traced. Raises EstimateError where even its parameters are not to be had."""
    from dataclasses import replace

    model = _module(question.model, error)
    found = predict(
        [model],
        _optimizers(model, question.optimizer),
        inputs=tuple(shapes_in(question.inputs)) or None,
        limit_bytes=question.limit_bytes,
        device_kind=question.device if question.device == "cuda" else "host",
        context_bytes=question.context_bytes,
    )
    operator = f" at {error.op}" if error.op else ""
    return replace(
        found, assumptions={**found.assumptions, "trace": f"not traced{operator}: {error}"}
    )


def _module(model: Any, error: TraceError) -> Any:
    if hasattr(model, "named_parameters") and not isinstance(model, type):
        return model
    try:
        import torch

        from memagent.estimator.trace.session import build_model

        with torch.device("meta"):
            return build_model(model)
    except Exception as second:
        raise EstimateError(
            f"the model can neither be traced ({error}) nor made ({second})"
        ) from second


def _optimizers(model: Any, optimizer: Any) -> Sequence[Any]:
    """An optimizer to read the state's size off; making one allocates nothing."""
    import torch

    if optimizer is None or hasattr(optimizer, "param_groups"):
        return [] if optimizer is None else [optimizer]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if callable(optimizer):
        made = optimizer(trained)
        if not hasattr(made, "param_groups"):
            raise EstimateError(
                f"the callable given as optimizer makes a {type(made).__name__}, not an optimizer"
            )
        return [made]
    kinds = {
        name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)
    }
    kind = kinds.get(str(optimizer).lower())
    if kind is None:
        raise EstimateError(
            f"optimizer {optimizer!r} is not in torch.optim: give one of {', '.join(sorted(kinds))}"
        )
    return [kind(trained, lr=1e-3)]
