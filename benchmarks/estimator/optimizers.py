"""Optimizers of the zoo by name, and one written for it: Adam with 8-bit states as in bitsandbytes,
for machines without its kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_BLOCK = 256
_SMALL = 4096
"""Parameters with fewer elements keep fp32 states (bitsandbytes' `min_8bit_size`)."""


class AdamW8bit(torch.optim.Optimizer):
    """AdamW whose moments take a byte per element and a fp32 scale per block of 256: 2.03 bytes a
    parameter.

    Moments are unpacked, used and packed again one parameter at a time, so there are fp32
    temporaries that the fused kernel doesn't have. Rounding is linear instead of bitsandbytes'
    table; the sizes are equal.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 1e-3) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group["lr"])

    def _update(self, parameter: torch.Tensor, rate: float) -> None:
        state = self.state[parameter]
        if not state:
            for name in ("mean", "square"):
                state[name] = _closed(torch.zeros_like(parameter, dtype=torch.float32))
        mean, square = _opened(state["mean"], parameter), _opened(state["square"], parameter)
        gradient = parameter.grad.float()
        mean.lerp_(gradient, 0.1)
        square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        parameter.addcdiv_(
            mean.to(parameter.dtype),
            square.abs().sqrt_().add_(1e-8).to(parameter.dtype),
            value=-rate,
        )
        state["mean"], state["square"] = _closed(mean), _closed(square)


def _closed(values: torch.Tensor) -> Any:
    if values.numel() < _SMALL:
        return values
    flat = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % _BLOCK)).view(-1, _BLOCK)
    scale = flat.abs().amax(1).clamp_(min=1e-12)
    return flat.div_(scale[:, None]).mul_(127).add_(128).to(torch.uint8), scale


def _opened(state: Any, like: torch.Tensor) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    codes, scale = state
    return (
        codes.float()
        .sub_(128)
        .div_(127)
        .mul_(scale[:, None])
        .flatten()[: like.numel()]
        .view(like.shape)
    )


_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "adamw_single": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=False),
    "adamw_foreach": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=1e-3, amsgrad=True),
    "adamw_8bit": AdamW8bit,
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
}


def optimizer_named(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Create the optimizer over the trainable parameters."""
    return _OPTIMIZERS[name]([parameter for parameter in parameters if parameter.requires_grad])
