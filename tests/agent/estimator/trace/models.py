"""Small models of many kinds, built with torch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, LENGTH = 96, 64, 32


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, 10))


def half_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10))


class ResidualBlock(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.relu(self.second(self.relu(self.norm(self.first(image)))) + image)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        ResidualBlock(),
        ResidualBlock(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.after = nn.Sequential(
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(0.1),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        parts = (
            self.qkv(self.norm(hidden)).view(batch, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        )
        attended = functional.scaled_dot_product_attention(
            parts[0], parts[1], parts[2], is_causal=self.causal
        )
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.after(hidden)


class Transformer(nn.Module):
    """A GPT-like (causal, tied embeddings) or BERT-like model.

    `recompute` is None, "reentrant" or "saved".
    """

    def __init__(
        self,
        *,
        causal: bool = True,
        tied: bool = True,
        recompute: str | None = None,
        layers: int = 2,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Attention(causal) for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.drop = nn.Dropout(0.1)
        self.recompute = recompute
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(
            self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        )
        for layer in self.layers:
            hidden = self._run(layer, hidden)
        return self.head(self.norm(hidden))

    def _run(self, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        if self.recompute is None:
            return layer(hidden)
        return checkpoint(layer, hidden, use_reentrant=self.recompute == "reentrant")


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 8, 8)
        self.first = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.layers = nn.Sequential(Attention(False), Attention(False))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        hidden = self.patches(image).flatten(2).transpose(1, 2)
        hidden = torch.cat([self.first.expand(image.shape[0], -1, -1), hidden], 1)
        return self.head(self.layers(hidden)[:, 0])


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.cell = nn.LSTM(32, 48, 2, batch_first=True)
        self.head = nn.Linear(48, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.words(ids))[0])


class LowRank(nn.Module):
    """LoRA without a library: a frozen layer and two small trained ones."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.base(hidden) + self.up(self.down(hidden)) * 2


def lora() -> nn.Module:
    model = Transformer(tied=False).requires_grad_(False)
    for layer in model.layers:
        layer.qkv = LowRank(layer.qkv)
    return model


class InPlace(nn.Module):
    """In-place arithmetic, views of one buffer, and a scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        hidden = self.inner(hidden).mul_(2).relu_()
        left, right = hidden.chunk(2, dim=-1)
        total = torch.zeros_like(left).index_add_(
            0, torch.arange(left.shape[0], device=left.device), right
        )
        return left * total


def word_loss(output: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), ids.flatten())


def ids(batch: int = 4) -> torch.Tensor:
    return torch.arange(batch * LENGTH).remainder(WORDS).view(batch, LENGTH)


def cases() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Return factory, inputs and other arguments of `record_trace` by name."""
    rows, image = torch.ones(32, WIDTH), torch.ones(4, 3, 32, 32)
    words = {"targets": ids(), "loss": word_loss}
    return {
        "mlp": (mlp, rows, {}),
        "mlp sgd": (
            mlp,
            rows,
            {"optimizer": "sgd", "targets": torch.ones(32).long(), "loss": nn.CrossEntropyLoss()},
        ),
        "mlp accumulated": (mlp, rows, {"accumulate": 3, "keep_output": False}),
        "mlp zeroed": (mlp, rows, {"set_to_none": False}),
        "mlp bf16": (half_mlp, rows, {"autocast": "bf16", "clip_norm": 1.0}),
        "resnet": (resnet, image, {"optimizer": "momentum"}),
        "resnet bf16": (resnet, image, {"autocast": "bf16"}),
        "vit": (VisionTransformer, image, {}),
        "bert": (lambda: Transformer(causal=False, tied=False), ids(), words),
        "gpt tied": (Transformer, ids(), words),
        "gpt bf16": (Transformer, ids(), {**words, "autocast": "bf16"}),
        "gpt accumulated": (Transformer, ids(), {**words, "accumulate": 2, "autocast": "bf16"}),
        "gpt recomputed": (lambda: Transformer(recompute="saved", layers=4), ids(), words),
        "gpt recomputed reentrant": (
            lambda: Transformer(recompute="reentrant", layers=4),
            ids(),
            words,
        ),
        "lora": (lora, ids(), words),
        "in place": (InPlace, rows, {}),
        "adafactor": (Transformer, ids(), {**words, "optimizer": "adafactor"}),
    }
