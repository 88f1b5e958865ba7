"""Models of the zoo that need torch alone. Each is small enough to read and large enough to be
typical.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

Run = Callable[..., torch.Tensor]


def plain(block: Run, *arguments: Any) -> torch.Tensor:
    return block(*arguments)


def run_blocks(checkpointing: str) -> Callable[..., torch.Tensor]:
    """Call a block directly, or recompute it in backward."""
    if checkpointing == "none":
        return plain
    reentrant = checkpointing == "reentrant"
    return lambda block, *arguments: checkpoint(block, *arguments, use_reentrant=reentrant)


class Mlp(nn.Module):
    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        layers = [module for _ in range(depth) for module in (nn.Linear(width, width), nn.ReLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Residual(nn.Module):
    """ResNet's basic block: two 3x3 convolutions with BatchNorm, in-place ReLU, and a projection if
    the shape changes.
    """

    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(into, out, 3, stride, 1, bias=False),
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
        )
        self.first_norm, self.second_norm = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.relu(self.first_norm(self.first(x)))
        return self.relu(self.second_norm(self.second(inner)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-18 after He et al. 2015 if `width` is 64."""

    def __init__(self, width: int, classes: int, checkpointing: str) -> None:
        super().__init__()
        self.run = run_blocks(checkpointing)
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        pairs = zip([width, *widths], widths, strict=False)
        self.blocks = nn.ModuleList(Residual(into, out, 1 + (into != out)) for into, out in pairs)
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = self.run(block, x)
        return self.head(x.mean((2, 3)))


class TimedBlock(nn.Module):
    """Block of a diffusion model: GroupNorm, SiLU, convolution, an added time embedding, and
    optional attention over pixels.
    """

    def __init__(self, into: int, out: int, time: int, *, attention: bool) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.GroupNorm(8, into), nn.GroupNorm(8, out)
        self.conv_in, self.conv_out = (
            nn.Conv2d(into, out, 3, padding=1),
            nn.Conv2d(out, out, 3, padding=1),
        )
        self.time = nn.Linear(time, out)
        self.shortcut = nn.Conv2d(into, out, 1) if into != out else nn.Identity()
        self.attention = nn.MultiheadAttention(out, 4, batch_first=True) if attention else None

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        inner = (
            self.conv_in(functional.silu(self.norm_in(x)))
            + self.time(functional.silu(time))[:, :, None, None]
        )
        x = self.conv_out(functional.silu(self.norm_out(inner))) + self.shortcut(x)
        if self.attention is None:
            return x
        pixels = x.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(pixels, pixels, pixels, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """U-Net: down, middle, up, with concatenated skips. With `time` it is a denoiser; without, a
    segmenter with time 0.
    """

    def __init__(self, width: int, levels: int, checkpointing: str, *, attention: bool) -> None:
        super().__init__()
        self.run, self.width = run_blocks(checkpointing), width
        widths = [width * 2**level for level in range(levels)]
        self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 3, padding=1)
        pairs = list(zip([width, *widths], widths, strict=False))
        self.down = nn.ModuleList(
            TimedBlock(into, out, width, attention=False) for into, out in pairs
        )
        self.middle = TimedBlock(widths[-1], widths[-1], width, attention=attention)
        self.up = nn.ModuleList(
            TimedBlock(2 * out, into, width, attention=False) for into, out in reversed(pairs)
        )

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        rates = torch.arange(self.width // 2, device=x.device) / self.width
        embedded = torch.cat(
            [torch.sin(time[:, None] * rates), torch.cos(time[:, None] * rates)], dim=1
        )
        x, skips = self.stem(x), []
        for block in self.down:
            x = self.run(block, x, embedded)
            skips.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.run(self.middle, x, embedded)
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = self.run(block, torch.cat([x, skips.pop()], dim=1), embedded)
        return self.head(x)


class Attention(nn.Module):
    """Causal self-attention by SDPA."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        query, key, value = (
            self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Experts(nn.Module):
    """Mixture of experts: each token goes to its two best experts. The number of tokens per expert
    depends on the data, as in real models.
    """

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        shares, chosen = self.router(tokens).softmax(-1).topk(2, dim=-1)
        mixed = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, places = torch.where(chosen == number)
            mixed = mixed.index_add(
                0, rows, (expert(tokens[rows]) * shares[rows, places, None]).to(mixed.dtype)
            )
        return mixed.view(x.shape)


class Scan(nn.Module):
    """Selective scan in plain torch, one state per channel, token by token: many small tensors,
    like Mamba without its kernel.
    """

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.steps, self.gates = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.decay = nn.Parameter(torch.rand(width, states))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, gate = self.project(x).chunk(2, dim=-1)
        pace = functional.softplus(self.steps(values))
        into, read = self.gates(values).chunk(2, dim=-1)
        state, outputs = torch.zeros_like(self.decay).expand(x.shape[0], -1, -1), []
        for at in range(x.shape[1]):
            keep = torch.exp(-pace[:, at, :, None] * self.decay)
            state = keep * state + (pace[:, at] * values[:, at])[:, :, None] * into[:, at, None]
            outputs.append((state * read[:, at, None]).sum(-1))
        return self.out(torch.stack(outputs, dim=1) * functional.silu(gate))


class Layer(nn.Module):
    """Block: norm, mixer, norm, feed-forward, each with its residual."""

    def __init__(self, width: int, mixer: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mixer, self.feed_forward, self.dropout = mixer, feed_forward, nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.mixer(self.norms[0](x)))
        return x + self.feed_forward(self.norms[1](x))


class Decoder(nn.Module):
    """Language model: tokens in, scores of the next tokens out; the head shares the embedding.
    `kind` selects the mixer or the feed-forward.
    """

    def __init__(
        self, *, width: int, layers: int, words: int, checkpointing: str, kind: str = "attention"
    ) -> None:
        super().__init__()
        self.run, self.words = run_blocks(checkpointing), nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Layer(width, self._mixer(kind, width), self._feed(kind, width)) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def _mixer(kind: str, width: int) -> nn.Module:
        return Scan(width, 8) if kind == "scan" else Attention(width, 4)

    @staticmethod
    def _feed(kind: str, width: int) -> nn.Module:
        if kind == "experts":
            return Experts(width, 4)
        return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = self.run(layer, x)
        return functional.linear(self.norm(x), self.words.weight)


class Lstm(nn.Module):
    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.words(tokens))
        return self.head(states)


class GraphNet(nn.Module):
    """Graph layer: messages gathered along edges and scattered to nodes."""

    def __init__(self, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        for message in self.messages:
            edge_messages = functional.relu(
                message(torch.cat([nodes[source], nodes[target]], dim=1))
            )
            nodes = nodes + torch.zeros_like(nodes).scatter_add(
                0, target[:, None].expand_as(edge_messages), edge_messages.to(nodes.dtype)
            )
        return self.head(nodes)


class Encoder(nn.Module):
    """torch's encoder layers, whose fast path must not run in training."""

    def __init__(self, width: int, layers: int, words: int) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens)))


class LowRank(nn.Module):
    """LoRA around a frozen Linear (Hu et al. 2021), without peft."""

    def __init__(self, inner: nn.Linear, rank: int) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 2.0 * self.up(self.down(x))


def add_low_rank(model: nn.Module, rank: int = 8) -> nn.Module:
    """Freeze `model` and wrap every Linear in LoRA."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear) and not isinstance(parent, LowRank):
                setattr(parent, name, LowRank(child, rank))
    return model
