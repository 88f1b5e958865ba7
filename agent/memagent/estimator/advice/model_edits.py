"""Changes to a model before its step is traced: in the tracing process only, where the model is its own. torch is imported when called.

Parameters that are made here are on the meta device: the trace gives each its fake counterpart, and no device is ever asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class EditedModel:
    """Makes the model with edits applied, named as in EDITS, each with its arguments."""

    def __init__(self, model: Any, edits: tuple[tuple[str, Mapping[str, Any]], ...]) -> None:
        self._model, self._edits = model, edits

    def __call__(self) -> Any:
        from memagent.estimator.trace.session import build_model

        model = build_model(self._model)
        for name, arguments in self._edits:
            EDITS[name](model, **arguments)
        return model


def in_bf16(model: Any) -> None:
    """fp32 parameters and buffers in bf16; tied ones stay tied."""
    import torch

    made: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype == torch.float32:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, dtype=torch.bfloat16, device="meta")
                    made[id(parameter)] = torch.nn.Parameter(
                        empty, requires_grad=parameter.requires_grad
                    )
                module._parameters[name] = made[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype == torch.float32:
                module._buffers[name] = torch.empty_like(
                    buffer, dtype=torch.bfloat16, device="meta"
                )


def with_lora(model: Any, *, targets: tuple[str, ...], rank: int) -> None:
    """Freezes the model and puts fp32 adapters beside its layers of these names (Hu et al. 2021; peft/tuners/lora/layer.py)."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for path, module in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        weight = getattr(module, "weight", None)
        if name in targets and weight is not None and weight.dim() == 2:
            setattr(model.get_submodule(parent), name, _adapted(module, rank))


def _adapted(layer: Any, rank: int) -> Any:
    import torch

    transposed = not isinstance(layer, torch.nn.Linear)  # GPT-2's Conv1D holds (in, out)
    rows, cols = layer.weight.shape
    inner, outer = (rows, cols) if transposed else (cols, rows)

    class Adapted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = layer
            self.adapter_a = torch.nn.Linear(inner, rank, bias=False, device="meta")
            self.adapter_b = torch.nn.Linear(rank, outer, bias=False, device="meta")

        def forward(self, inputs: Any) -> Any:
            output = self.base(inputs)
            return output + self.adapter_b(self.adapter_a(inputs.float())).to(output.dtype)

    return Adapted()


EDITS: dict[str, Callable[..., None]] = {"in_bf16": in_bf16, "with_lora": with_lora}
