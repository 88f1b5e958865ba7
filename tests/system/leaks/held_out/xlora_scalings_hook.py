"""Each forward registers a pre-hook with its scalings on every layer; only the last one is removed.
https://github.com/huggingface/peft/pull/2761"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class ScaledLinear(nn.Module):
    def __init__(self, width, experts):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(experts, width, 4) * 0.02)
        self.up = nn.Parameter(torch.zeros(experts, 4, width))

    def forward(self, x, scalings=None):
        out = self.base(x)
        if scalings is not None:
            delta = torch.einsum("btd,edr,erf->btef", x, self.down, self.up)
            out = out + torch.einsum("btef,bte->btf", delta, scalings)
        return out


class XLora(nn.Module):
    def __init__(self, width=32, experts=4, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(ScaledLinear(width, experts) for _ in range(depth))
        self.router = nn.Linear(width, experts)

    def forward(self, x):
        scalings = self.router(x.detach()).softmax(-1)

        def injection(module, args, kwargs):
            kwargs["scalings"] = scalings
            return args, kwargs

        handles = []
        for layer in self.layers:
            handle = layer.register_forward_pre_hook(injection, with_kwargs=True)  # LEAK any hook
            handles.append(handle)
        for layer in self.layers:
            x = torch.relu(layer(x))
        handles[-1].remove()
        return x


model = XLora()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(STEPS):
    x = torch.randn(16, 64, 32)
    loss = (model(x) - x.roll(1, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
