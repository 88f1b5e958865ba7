"""Train a model for three steps on the GPU: `fit_step.py MODEL BATCH [LIMIT]`.

With a limit, the step is fitted by `memagent.fit` before. `benchmarks.estimator.fitting` rehearses
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import memagent

TOKENS = 512
VOCABULARY = 8000
_SIZES = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
_DECODER = {**_SIZES, "num_hidden_layers": 8, "vocab_size": 16000, "max_position_embeddings": 512}
_ENCODER = {**_SIZES, "num_hidden_layers": 8}
OF_TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("CausalLM", {"n_layer": 12, "n_embd": 384, "n_head": 6}),
    "llama": ("CausalLM", _DECODER),
    "qwen": ("CausalLM", {**_DECODER, "num_key_value_heads": 2}),
    "gemma": ("CausalLM", {**_DECODER, "num_key_value_heads": 2, "head_dim": 64}),
    "phi": ("CausalLM", _DECODER),
    "gpt_neox": ("CausalLM", _DECODER),
    "opt": ("CausalLM", {**_DECODER, "ffn_dim": 2048, "word_embed_proj_dim": 512}),
    "bert": ("MaskedLM", _ENCODER),
    "roberta": ("MaskedLM", {**_ENCODER, "max_position_embeddings": 514}),
    "distilbert": ("MaskedLM", {"dim": 512, "n_layers": 8, "n_heads": 8, "hidden_dim": 2048}),
    "electra": ("MaskedLM", {**_ENCODER, "embedding_size": 256}),
    "t5": ("Seq2SeqLM", {"d_model": 512, "num_layers": 4, "decoder_start_token_id": 0}),
    "bart": ("Seq2SeqLM", {"d_model": 512, "encoder_layers": 4, "decoder_layers": 4}),
    "vit": ("ImageClassification", {**_ENCODER, "num_hidden_layers": 12}),
    "deit": (
        "ImageClassification",
        {**_ENCODER, "num_hidden_layers": 12, "architectures": ["DeiTForImageClassification"]},
    ),
    "convnext": ("ImageClassification", {}),
}
"""Models of transformers: the task of their Auto class, and their config."""
Step = tuple[nn.Module, Any, Any, Callable[..., Any] | None]
"""Model, inputs, targets and loss."""


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList((nn.LayerNorm(width), nn.LayerNorm(width)))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        rows, tokens, width = values.shape
        parts = self.qkv(self.norms[0](values)).chunk(3, -1)
        query, key, value = (p.view(rows, tokens, self.heads, -1).transpose(1, 2) for p in parts)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.out(mixed.transpose(1, 2).reshape(rows, tokens, width))
        inner: torch.Tensor = self.down(nn.functional.gelu(self.up(self.norms[1](values))))
        return values + inner


class Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, num_layers=3, batch_first=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.lstm(values)[0]
        return output


class Unit(nn.Module):
    """Two convolutions with batch norm, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts = (nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.body = nn.Sequential(*parts, nn.Conv2d(width, width, 3, padding=1))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + nn.functional.relu(self.body(values))


class Residual(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.units = nn.Sequential(*(Unit(width) for _ in range(8)))
        self.head = nn.Linear(width, 10)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.units(self.stem(values)).mean((-1, -2)))
        return output


class UNet(nn.Module):
    """Units on three resolutions, each joined with what came down to it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 3, 1)
        self.down = nn.ModuleList(Unit(width) for _ in range(3))
        self.up = nn.ModuleList(Unit(width) for _ in range(3))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values, passed = self.stem(values), []
        for unit in self.down:
            values = unit(values)
            passed.append(values)
            values = nn.functional.avg_pool2d(values, 2)
        for unit in self.up:
            values = nn.functional.interpolate(values, scale_factor=2)
            values = unit(values + passed.pop())
        output: torch.Tensor = self.out(values)
        return output


def language_model(width: int, *body: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), nn.Sequential(*body), nn.Linear(width, VOCABULARY)
    )


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def build(name: str, batch: int, device: str = "cuda") -> Step:
    tokens = torch.zeros(batch, TOKENS, dtype=torch.long, device=device)
    if name.startswith("decoder"):
        layers = int(name.removeprefix("decoder"))
        body = (DecoderBlock(12 * 512 // layers) for _ in range(layers))
        return language_model(12 * 512 // layers, *body), tokens, tokens, cross_entropy
    if name == "lstm":
        return language_model(512, Recurrent(512)), tokens, tokens, cross_entropy
    if name == "encoder":
        layer = nn.TransformerEncoderLayer(512, 8, batch_first=True)
        body = (nn.TransformerEncoder(layer, 8),)
        return language_model(512, *body), tokens, tokens, cross_entropy
    if name in ("resnet", "unet"):
        net = Residual() if name == "resnet" else UNet()
        return net, torch.zeros(batch, 3, 128, 128, device=device), None, None
    if name == "mlp":
        parts = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
        blocks = (nn.Sequential(*parts) for _ in range(8))
        return nn.Sequential(*blocks), torch.zeros(batch, 1024, device=device), None, None
    return of_transformers(name), batch_of(name, tokens), None, None


def of_transformers(name: str) -> Any:
    import transformers as hub

    task, options = OF_TRANSFORMERS[name]
    config = hub.AutoConfig.for_model(name.replace("qwen", "qwen2"), **options)
    return getattr(hub, f"AutoModelFor{task}").from_config(config)


def batch_of(name: str, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    if OF_TRANSFORMERS[name][0] != "ImageClassification":
        return {"input_ids": tokens, "labels": tokens}
    images = torch.zeros(len(tokens), 3, 224, 224, device=tokens.device)
    return {"pixel_values": images, "labels": tokens[:, 0]}


def main(name: str, batch: str, limit: str | None = None) -> None:
    model, inputs, targets, loss = build(name, int(batch))
    optimizer = torch.optim.AdamW(model.cuda().train().parameters(), lr=1e-4)
    plan = None
    if limit is not None:
        plan = memagent.fit(model, optimizer, inputs, targets=targets, loss=loss, limit=limit)
        print(plan, flush=True)
    for _ in range(3):
        if plan is not None:
            plan.backward(inputs, targets)
        elif isinstance(inputs, dict):
            model(**inputs).loss.backward()
        else:
            output = model(inputs)
            (loss(output, targets) if loss else output.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(*sys.argv[1:])
