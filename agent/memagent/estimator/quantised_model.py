"""Quantised weights of a traced model: bitsandbytes' layers, and how libraries prepare them.

Runs in the tracing process only. The weights are on the meta device: no value is quantised.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any

from memagent.errors import EstimateError

TRACED_QUANTISATIONS = ("int8", "nf4", "nf4-double")
"""Names of `--quantised` that a trace knows."""
_OUTLIER = 6.0
"""Threshold of transformers (`BitsAndBytesConfig.llm_int8_threshold`)."""
_FLAGS = ("is_loaded_in_8bit", "is_loaded_in_4bit")
_LAYERS = ("Linear8bitLt", "Linear4bit")
_MIN_SHARE = 0.5
"""Share of quantised weights below which an answer says it."""
_NARROWED = ("lm_head", "embed_tokens", "wte", "wpe")
"""Names in the paths of modules that TRL's `peft_module_casting_to_bf16` converts to bf16."""


def quantise(model: Any, name: str) -> Any:
    """Replace all linear layers but the head's, as transformers does when it loads a model.

    Raises EstimateError without bitsandbytes.
    """
    try:
        import bitsandbytes
    except ImportError:
        raise EstimateError(
            "tracing quantised weights needs bitsandbytes: pip install bitsandbytes"
        ) from None
    build = _eight_bit if name == "int8" else partial(_four_bit, has_double_scales=name != "nf4")
    for path, layer in list(_linear_layers(model)):
        model.set_submodule(path, build(bitsandbytes.nn, layer))
    setattr(model, _FLAGS[name != "int8"], True)
    return model


def _linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    torch = sys.modules["torch"]
    head = model.get_output_embeddings()
    for path, module in model.named_modules():
        # GPT-2's Conv1D holds (in, out)
        is_linear = type(module) is torch.nn.Linear or type(module).__name__ == "Conv1D"
        if is_linear and module is not head:
            yield path, module


def _eight_bit(nn: Any, layer: Any) -> Any:
    torch = sys.modules["torch"]
    rows, columns = _weight(layer).shape
    quantised = nn.Linear8bitLt(
        columns,
        rows,
        layer.bias is not None,
        has_fp16_weights=False,
        threshold=_OUTLIER,
        device="meta",
    )
    values = torch.empty(rows, columns, dtype=torch.int8, device="meta")
    scales = torch.empty(rows, dtype=torch.float32, device="meta")
    quantised.weight = nn.Int8Params(values, requires_grad=False, CB=values, SCB=scales)
    quantised.bias = layer.bias
    return quantised.requires_grad_(False)


def _weight(layer: Any) -> Any:
    is_linear = isinstance(layer, sys.modules["torch"].nn.Linear)
    return layer.weight if is_linear else layer.weight.T


def _four_bit(nn: Any, layer: Any, *, has_double_scales: bool) -> Any:
    torch = sys.modules["torch"]
    weight = _weight(layer)
    rows, columns = weight.shape
    options = {"compress_statistics": has_double_scales, "quant_type": "nf4"}
    quantised = nn.Linear4bit(
        columns, rows, layer.bias is not None, weight.dtype, device="meta", **options
    )
    values = nn.Params4bit(weight.detach(), requires_grad=False, module=quantised, **options)
    with torch.device("cpu"):  # it reads the values of its tables
        quantised.weight = values._quantize("meta")
    if layer.bias is not None:
        quantised.bias = layer.bias
    return quantised.requires_grad_(False)


def quantisation_notes(model: Any) -> list[str]:
    """Say which share of the layers' weights is quantised if the library leaves most as they are.

    It replaces layers of torch.nn.Linear itself: neither experts that are one tensor, as since
    transformers 5, nor subclasses, as Falcon's.
    """
    if not any(getattr(model, name, False) for name in _FLAGS):
        return []
    narrow_count = count = 0
    edges = (model.get_input_embeddings(), model.get_output_embeddings())
    for module in (each for each in model.modules() if each not in edges):
        is_quantised = type(module).__name__ in _LAYERS
        for weight in module.parameters(recurse=False):
            # two values of four bits are one of the packed weight; the state knows the shape
            state = getattr(weight, "quant_state", None)
            size = weight.numel() if state is None else prod(state.shape)
            count += size
            narrow_count += size * is_quantised
    share = narrow_count / max(1, count)
    if share >= _MIN_SHARE:
        return []
    return [
        f"{share:.0%} of the layers' weights are quantised: bitsandbytes replaces plain linear "
        "layers, and leaves experts that are one tensor and other classes as they are"
    ]


def prepare(model: Any, *, has_checkpointing: bool) -> Any:
    """Prepare a quantised model by peft's own function; checkpointing is enabled elsewhere."""
    try:
        from peft import prepare_model_for_kbit_training
    except ImportError:
        raise EstimateError("tracing kbit_training needs peft: pip install peft") from None
    prepared = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    if has_checkpointing:
        prepared.enable_input_require_grads()
    return prepared


def narrow(model: Any) -> None:
    """Convert embeddings and head back to bf16, as TRL does under autocast."""
    torch = sys.modules["torch"]
    for path, module in model.named_modules():
        has_weight = getattr(module, "weight", None) is not None
        if has_weight and any(name in path for name in _NARROWED):
            module.to(torch.bfloat16)
