"""Quantize a network layer by layer, with activations that are kept as long as they are in use."""

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary


class ActivationCache:
    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.offloaded = WeakIdKeyDictionary()

    def offload(self, value: torch.Tensor) -> torch.Tensor:
        if value not in self.offloaded:
            self.offloaded[value] = value.to(self.dtype)
        return self.offloaded[value]


torch.manual_seed(5)
layers = nn.ModuleList(nn.Linear(192, 192) for _ in range(3))
scales = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([scales], lr=1e-3)
cache = ActivationCache(torch.float32)
for _ in range(600):
    hidden = torch.randn(128, 192)
    loss = torch.zeros(())
    for layer, scale in zip(layers, scales, strict=True):
        hidden = cache.offload(hidden.detach())
        exact = layer(hidden).relu()
        rounded = torch.round(exact.detach() * 8) / 8
        loss = loss + nn.functional.mse_loss(rounded * scale, exact.detach())
        hidden = exact
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
