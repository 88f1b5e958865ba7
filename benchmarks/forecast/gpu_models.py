"""Small models of the kinds that people train, for `gpu_programs.py`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """Return the output, and keys and values with those of `past` before them."""
        rows, length, width = x.shape
        shape = (rows, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if past is not None:
            key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=past is None)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width)), (key, value)


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        mixed, present = self.attention(self.before(x), past)
        x = x + mixed
        return x + self.mlp(self.between(x)), present


class Transformer(nn.Module):
    """A causal language model."""

    def __init__(self, width: int = 256, layers: int = 3, vocabulary: int = 4096) -> None:
        super().__init__()
        self.width, self.vocabulary = width, vocabulary
        self.embed = nn.Embedding(4 * vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x, _ = block(x)
        return x

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens))

    def loss(self, tokens: Tensor) -> Tensor:
        return functional.cross_entropy(self(tokens).flatten(0, 1), tokens.flatten())

    def generate(self, tokens: Tensor, count: int) -> tuple[Tensor, list[Any]]:
        """Return the last logits and each block's keys and values."""
        pasts: list[Any] = [None] * len(self.blocks)
        for _ in range(count):
            x = self.embed(tokens)
            for place, block in enumerate(self.blocks):
                x, pasts[place] = block(x, pasts[place])
            logits = self.head(x[:, -1:])
            tokens = logits.argmax(-1)
        return logits, pasts


class ConvNet(nn.Module):
    """A classifier, with most of its parameters in its last layers."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        before = 3
        for stage in range(3):
            after = width * 2**stage
            stages += [self.stage(before, after), self.stage(after, after), nn.MaxPool2d(2)]
            before = after
        self.body = nn.Sequential(*stages)
        self.head = perceptron(before, 2048, 64 * width, 1000)

    @staticmethod
    def stage(before: int, after: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
        )

    def features(self, images: Tensor) -> Tensor:
        return self.body(images).mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


class Recurrent(nn.Module):
    """A language model with an LSTM."""

    def __init__(self, width: int = 256, vocabulary: int = 4096) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        output, state = self.lstm(self.embed(tokens), state)
        return self.head(output), state


class UNet(nn.Module):
    """A denoiser of images, with two levels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        stage = ConvNet.stage
        self.time = nn.Linear(1, 2 * width)
        self.down, self.middle = stage(3, width), stage(width, 2 * width)
        self.deep, self.up = stage(2 * width, 2 * width), stage(3 * width, width)
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor, times: Tensor) -> Tensor:
        high = self.down(images)
        low = self.middle(functional.avg_pool2d(high, 2))
        low = self.deep(low + self.time(times[:, None])[:, :, None, None])
        return self.out(self.up(torch.cat([high, functional.interpolate(low, scale_factor=2)], 1)))

    def loss(self, images: Tensor) -> Tensor:
        times, noise = torch.rand(len(images), device=images.device), torch.randn_like(images)
        mixed = torch.lerp(images, noise, times[:, None, None, None])
        return functional.mse_loss(self(mixed, times), noise)


def perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Experts(nn.Module):
    """A mixture of experts. The caller says how many tokens each gets, as a router would."""

    def __init__(self, width: int = 256, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(perceptron(width, 4 * width, width) for _ in range(experts))

    def forward(self, x: Tensor, loads: list[int]) -> Tensor:
        weights = self.router(x).softmax(-1)
        parts = x.split(loads)
        return torch.cat(
            [
                expert(part) * weight[:, place, None]
                for place, (expert, part, weight) in enumerate(
                    zip(self.experts, parts, weights.split(loads), strict=True)
                )
            ]
        )


class GraphNet(nn.Module):
    """Message passing over edges."""

    def __init__(self, width: int, layers: int = 3) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 16)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer in self.messages:
            sent = layer(torch.cat([nodes[edges[0]], nodes[edges[1]]], -1)).relu()
            nodes = nodes + torch.zeros_like(nodes).index_add(0, edges[1], sent)
        return self.head(nodes)


class Adapter(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def add_adapters(model: Transformer, rank: int) -> list[nn.Parameter]:
    """Freeze the model, put an adapter on each query-key-value layer, and return what is trained."""
    model.requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.attention.qkv = Adapter(block.attention.qkv, rank).to(model.embed.weight.device)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
