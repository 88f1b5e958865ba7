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


def language_model(width: int, *body: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, width), nn.Sequential(*body), nn.Linear(width, VOCABULARY)
    )


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def build(name: str, batch: int) -> Step:
    tokens = torch.zeros(batch, TOKENS, dtype=torch.long, device="cuda")
    if name.startswith("decoder"):
        layers = int(name.removeprefix("decoder"))
        body = (DecoderBlock(12 * 512 // layers) for _ in range(layers))
        return language_model(12 * 512 // layers, *body), tokens, tokens, cross_entropy
    if name == "lstm":
        return language_model(512, Recurrent(512)), tokens, tokens, cross_entropy
    if name == "mlp":
        parts = [nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)]
        blocks = (nn.Sequential(*parts) for _ in range(8))
        return nn.Sequential(*blocks), torch.zeros(batch, 1024, device="cuda"), None, None
    return of_transformers(name), batch_of(name, tokens), None, None


def of_transformers(name: str) -> Any:
    import transformers as hub

    sizes = {"hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
    if name == "gpt2":
        return hub.GPT2LMHeadModel(hub.GPT2Config(n_layer=12, n_embd=384, n_head=6))
    if name == "bert":
        return hub.BertForMaskedLM(hub.BertConfig(num_hidden_layers=8, **sizes))
    if name == "llama":
        config = hub.LlamaConfig(num_hidden_layers=8, vocab_size=16000, **sizes)
        return hub.LlamaForCausalLM(config)
    return hub.ViTForImageClassification(hub.ViTConfig(num_hidden_layers=12, **sizes))


def batch_of(name: str, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    if name != "vit":
        return {"input_ids": tokens, "labels": tokens}
    images = torch.zeros(len(tokens), 3, 224, 224, device="cuda")
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
