"""`memagent.estimate`: what a training step of a model will need, before it runs.

Arguments are checked before a process is started. Each mistake is an EstimateError that says what
to pass instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator import engine
from memagent.estimator.advice import advise
from memagent.estimator.cards import card_named, precision_remarks
from memagent.estimator.devices import (
    CUBLAS_HANDLES,
    ContextSize,
    context_of,
    cublas_workspace_bytes,
)
from memagent.estimator.estimate import Estimate
from memagent.estimator.formula.spec import Loop, check_loop
from memagent.estimator.huggingface import request_for_config
from memagent.estimator.input_specs import tensor_specs
from memagent.estimator.request import EstimateRequest, TraceRequest
from memagent.units import parse_bytes

_AUTOCAST: Mapping[str, Literal["bf16", "fp16"]] = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
}
_PLAIN_TYPES = (int, float, str, bytes, Mapping, list, tuple)


def autocast_named(dtype: Any) -> Literal["bf16", "fp16"] | None:
    """Return "bf16" or "fp16" for a name or a torch dtype, None for None."""
    if dtype is None:
        return None
    name = _AUTOCAST.get(str(dtype).lower().removeprefix("torch."))
    if name is None:
        raise EstimateError(f'autocast is {dtype!r}: use "bf16", "fp16" or None')
    return name


def checkpointing_named(value: Any) -> Literal["full"] | None:
    """Return "full" for True and "full", None for None, False and "none"."""
    if value is None or value is False or value == "none":
        return None
    if value is True or value == "full":
        return "full"
    raise EstimateError(
        f'checkpointing is {value!r}: use "full" or None; the model\'s own checkpointing is traced '
        "anyway"
    )


def check_step(inputs: Any, loss: Any, accumulation: Any) -> None:
    """Check that inputs hold a tensor, the loss is callable, and a step has a forward."""
    has_tensor = next(tensor_specs(inputs), None) is not None
    if not has_tensor and (inputs is None or isinstance(inputs, _PLAIN_TYPES)):
        # objects of other types may hold tensors
        raise EstimateError(
            f"inputs is {_described(inputs)} and holds no tensor: pass the model's arguments (a "
            "tensor, a tuple, a dict), or (shape, dtype name) in place of a tensor, such as "
            '((8, 1024), "int64")'
        )
    if loss is not None and not callable(loss):
        raise EstimateError(
            f"loss is {_described(loss)}: pass a callable, loss(output, targets), or None for the "
            "model's own"
        )
    if not isinstance(accumulation, int) or accumulation < 1:
        raise EstimateError(f"accumulation is {accumulation!r}: use 1 or more forwards a step")


def check_optimizer(model: Any, optimizer: Any) -> None:
    """Check that the optimizer is one, and holds a parameter of the model."""
    if optimizer is None or isinstance(optimizer, str):
        return
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        if not callable(optimizer):
            raise EstimateError(
                f"optimizer is {_described(optimizer)}: pass one made for the model, a name, a "
                "callable or None"
            )
        return
    if isinstance(model, type) or not hasattr(model, "named_parameters"):
        return  # a factory: there are no parameters yet
    parameter_ids = {id(parameter) for group in groups for parameter in group["params"]}
    if not any(id(parameter) in parameter_ids for parameter in model.parameters()):
        raise EstimateError(
            f"the {type(optimizer).__name__} holds none of the model's parameters: make it from "
            "model.parameters()"
        )


def _described(value: Any) -> str:
    is_short = value is None or isinstance(value, int | float | str)
    return f"{value!r:.40}" if is_short else f"a {type(value).__name__}"


def estimate(
    model: Any,
    inputs: Any,
    *,
    optimizer: Any = "adamw",
    loss: Callable[..., Any] | None = None,
    targets: Any = None,
    autocast: Any = None,
    checkpointing: Literal["full"] | bool | None = None,
    accumulation: int = 1,
    accumulate: int | None = None,
    loop: Loop = "plain",
    set_to_none: bool = True,
    device: str = "cuda",
    gpu: str | None = None,
    limit_bytes: int | str | None = None,
    context_bytes: int | None = None,
    allocator: str | None = None,
    advice: bool = False,
    timeout_s: float = 60.0,
) -> Estimate:
    """Estimate a training step of `model` on `inputs` without running it.

    The step is traced on fake tensors in a separate process.

    - model: a torch.nn.Module (it isn't changed), a callable that returns one, or
      "path.py:factory".
    - inputs: the model's arguments (tensor, tuple, dict), with `(shape, dtype name)` in place of a
      tensor if you like, such as `((8, 1024), "int64")`.
    - optimizer: one made for the model, a name in torch.optim, a callable that takes the
      parameters, or None.
    - loss: `loss(output, targets)`; default: the model's own (`output.loss`).
    - autocast: None, "bf16", "fp16" or torch's dtype.
    - checkpointing: "full" or True recomputes each repeated block.
    - accumulation: forwards for one optimizer step; `accumulate` is its older name.
    - loop: what becomes of the model's output. In a "plain" loop it lives until the next one
      replaces it, in the function of a "step" until backward has ended. transformers' "trainer"
      drops it before backward, and clips gradients.
    - set_to_none: as in the script's `zero_grad`.
    - device: "cuda" (no GPU needed) or "cpu". gpu: a name such as "a100", which sets limit and
      context.
    - limit_bytes: bytes or "24GiB".
    - allocator: as PYTORCH_CUDA_ALLOC_CONF, which is also the default.
    - advice: also try changes that would save memory (a trace for each).

    Of a model that cannot be traced only the least needed is known: its method is "bound", its
    outcome "unknown" or "won't fit", and `assumptions["trace"]` has the reason. Raises
    EstimateError for invalid arguments, and SettingError for an invalid size.
    """
    accumulation = accumulation if accumulate is None else accumulate
    check_step(inputs, loss, accumulation)
    check_optimizer(model, optimizer)
    check_loop(loop)
    autocast = autocast_named(autocast)
    card = card_named(gpu).key if gpu is not None else None
    request = TraceRequest(
        model=model,
        inputs=inputs,
        targets=targets,
        optimizer=optimizer,
        loss=loss,
        autocast=autocast,
        checkpointing=checkpointing_named(checkpointing),
        accumulation=accumulation,
        loop=loop,
        set_to_none=set_to_none,
        timeout_s=timeout_s,
        remarks=tuple(precision_remarks(card, autocast)),
        **device_fields(
            device,
            gpu=gpu,
            limit_bytes=limit_bytes,
            context_bytes=context_bytes,
            allocator=allocator,
        ),
    )
    return estimate_request(request, advice=advice)


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
    """Estimate the model of a Hugging Face config.json (path, folder or content) by tracing it.

    `training` is as for `huggingface.request_for_config`: batch, sequence, precision, optimizer,
    checkpointing, lora_rank and so on. Raises EstimateError if transformers isn't installed or has
    no such model; the formula (`formula.from_config`) may know it.
    """
    if "accumulate" in training:  # its older name
        training["accumulation"] = training.pop("accumulate")
    fields = device_fields(
        device, gpu=gpu, limit_bytes=limit_bytes, context_bytes=context_bytes, allocator=allocator
    )
    return estimate_request(request_for_config(config, **training, **fields), advice=advice)


def estimate_request(request: EstimateRequest, *, advice: bool = False) -> Estimate:
    """Estimate a request, with advice if asked to."""
    result, trace = engine.estimate_and_trace(request)
    return replace(result, advice=advise(request, result, trace)) if advice else result


def device_fields(
    device: str = "cuda",
    *,
    gpu: str | None = None,
    limit_bytes: int | str | None = None,
    context_bytes: int | None = None,
    allocator: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a `TraceRequest` that describe the device; see `estimate`."""
    card = card_named(gpu) if gpu is not None else None
    if device not in ("cuda", "cpu"):
        raise EstimateError(f'device is {device!r}: use "cuda" (no GPU is needed) or "cpu"')
    is_cuda = device == "cuda"
    limit = card.total_bytes if card else None
    capability = card.capability if card else None
    context = context_of(context_bytes, capability) if is_cuda else ContextSize(context_bytes or 0)
    handle_bytes = cublas_workspace_bytes(capability)
    if allocator is None:
        allocator = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return {
        "device": device,
        "allocator": allocator,
        "limit_bytes": limit if limit_bytes is None else parse_bytes(limit_bytes),
        "workspace_bytes": CUBLAS_HANDLES * handle_bytes if is_cuda else 0,
        "context_bytes": context.size_bytes,
        "context_interval": context.interval,
    }
