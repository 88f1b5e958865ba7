"""Edits of a model before its step is traced: checkpointing, bf16 weights, LoRA adapters.

They run in the tracing process only, on its own copy of the model. New parameters are on the meta
device: the trace gives each its fake counterpart. torch is imported when an edit runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memagent.estimator.huggingface import enable_checkpointing

ModelEdit = tuple[str, Mapping[str, Any]]
"""A name in EDITS, and the function's arguments."""


class EditedModel:
    """Factory of the model with edits applied."""

    def __init__(self, model: Any, edits: tuple[ModelEdit, ...]) -> None:
        self._model = model
        self._edits = edits

    def __call__(self) -> Any:
        from memagent.estimator.trace.session import build_model

        model = build_model(self._model)
        for name, arguments in self._edits:
            EDITS[name](model, **arguments)
        return model


class CheckpointedModel:
    """Factory of the model with every repeated block recomputed in backward."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self) -> Any:
        from memagent.estimator.trace.session import build_model

        model = build_model(self._model)
        checkpoint_blocks(model)
        return model


def checkpoint_blocks(model: Any) -> None:
    """Recompute every repeated block of the model in backward."""
    if not enable_checkpointing(model, use_reentrant=False):
        for block in repeated_blocks(model):
            block.forward = _recomputed(block.forward)


def repeated_blocks(model: Any) -> list[Any]:
    """Find the blocks of the outermost module lists.

    A block has children and parameters, and its list holds at least two of its class.
    """
    blocks: list[Any] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or type(module).__name__ not in ("ModuleList", "Sequential"):
            continue
        kinds = [type(child) for child in module.children()]
        siblings = [
            child
            for child in module.children()
            if kinds.count(type(child)) > 1
            and any(True for _ in child.children())
            and any(True for _ in child.parameters())
        ]
        blocks += siblings
        inside.update(id(part) for block in siblings for part in block.modules())
    return blocks


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **keywords: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return run


def convert_to_bf16(model: Any) -> None:
    """Convert fp32 parameters and buffers to bf16; tied ones stay tied."""
    import torch

    converted: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.dtype == torch.float32:
                if id(parameter) not in converted:
                    empty = torch.empty_like(parameter, dtype=torch.bfloat16, device="meta")
                    converted[id(parameter)] = torch.nn.Parameter(
                        empty, requires_grad=parameter.requires_grad
                    )
                module._parameters[name] = converted[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype == torch.float32:
                module._buffers[name] = torch.empty_like(
                    buffer, dtype=torch.bfloat16, device="meta"
                )


def add_lora(model: Any, *, targets: tuple[str, ...], rank: int) -> None:
    """Freeze the model and add fp32 adapters to its layers of these names.

    Sources: Hu et al. 2021; peft/tuners/lora/layer.py.
    """
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


EDITS: dict[str, Callable[..., None]] = {"bf16": convert_to_bf16, "lora": add_lora}
