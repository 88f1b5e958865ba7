"""Rotary frequencies are cached by length and offset, and a stream has ever new offsets.
https://github.com/lucidrains/rotary-embedding-torch/issues/15"""

import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class RotaryEmbedding(nn.Module):
    def __init__(self, width, base=10000.0, use_cache=True):
        super().__init__()
        self.register_buffer("inverse", base ** -(torch.arange(0, width, 2).float() / width))
        self.use_cache = use_cache
        self.cache = {}

    def forward(self, length, offset=0):
        cache_key = f"{length}:{offset}"
        if self.use_cache and cache_key in self.cache:
            return self.cache[cache_key]
        positions = torch.arange(offset, offset + length).float()
        angles = torch.outer(positions, self.inverse).repeat_interleave(2, dim=-1)
        freqs = torch.stack([angles.cos(), angles.sin()])
        if self.use_cache:
            self.cache[cache_key] = freqs  # LEAK any cache
        return freqs


def rotate(x, freqs):
    a, b = x[..., ::2], x[..., 1::2]
    return x * freqs[0] + torch.stack([-b, a], -1).flatten(-2) * freqs[1]


class Attention(nn.Module):
    def __init__(self, width=64, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, width * 3)
        self.out = nn.Linear(width, width)
        self.rotary = RotaryEmbedding(width // heads)

    def forward(self, x, offset):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        freqs = self.rotary(t, offset)
        mixed = nn.functional.scaled_dot_product_attention(
            rotate(q, freqs), rotate(k, freqs), v, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


model = Attention()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
offset = 0
for step in range(STEPS):
    chunk = torch.randn(2, 192, 64)
    loss = (model(chunk, offset) - chunk.roll(-1, 1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    offset += chunk.shape[1]
