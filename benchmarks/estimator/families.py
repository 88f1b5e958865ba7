"""Builders of the zoo's families: model, inputs, targets and loss of a case at its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.estimator import models
from benchmarks.estimator.workload import Case

Tensors = dict[str, torch.Tensor]
Batch = Callable[[], tuple[Tensors, Tensors]]
"""Make a batch on torch's default device: the model's keyword arguments, and arguments of the loss
alone.
"""
Loss = Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
Built = tuple[nn.Module, Batch, Loss]


def classified(output: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(output, targets["labels"])


def next_word(output: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), targets["labels"].flatten())


def denoised(output: torch.Tensor, targets: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return functional.mse_loss(output, targets["noise"])


def own_loss(output: Any, _: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the loss of a `transformers` model, which computes it if it gets labels."""
    return output.loss


def _mlp(case: Case) -> Built:
    width, depth, rows = (4096, 8, 2048) if case.size == "large" else (256, 4, 64)

    def batch() -> tuple[Tensors, Tensors]:
        return {"x": torch.randn(rows, width)}, {"labels": torch.randint(10, (rows,))}

    return models.Mlp(width, depth, 10), batch, classified


def _resnet(case: Case) -> Built:
    width, images, size = (64, 64, 224) if case.size == "large" else (16, 4, 64)

    def batch() -> tuple[Tensors, Tensors]:
        return {"x": torch.randn(images, 3, size, size)}, {"labels": torch.randint(100, (images,))}

    return models.ResNet(width, 100, case.checkpointing), batch, classified


def _unet(case: Case, *, attention: bool = False) -> Built:
    width, levels, images, size = (128, 4, 16, 64) if case.size == "large" else (16, 3, 2, 32)

    def batch() -> tuple[Tensors, Tensors]:
        inputs = {"x": torch.randn(images, 3, size, size), "time": torch.rand(images)}
        return inputs, {"noise": torch.randn(images, 3, size, size)}

    return models.UNet(width, levels, case.checkpointing, attention=attention), batch, denoised


def _diffusion(case: Case) -> Built:
    return _unet(case, attention=True)


def _text(rows: int, length: int, words: int) -> Batch:
    def batch() -> tuple[Tensors, Tensors]:
        return {"tokens": torch.randint(words, (rows, length))}, {
            "labels": torch.randint(words, (rows, length))
        }

    return batch


def _decoder(case: Case, kind: str = "attention") -> Built:
    width, layers, words, rows, length = (
        (1024, 12, 32000, 8, 1024) if case.size == "large" else (64, 2, 512, 4, 64)
    )
    if kind == "scan":
        length = 256 if case.size == "large" else 32
    net: nn.Module = models.Decoder(
        width=width, layers=layers, words=words, checkpointing=case.checkpointing, kind=kind
    )
    return (models.add_low_rank(net) if case.lora else net), _text(rows, length, words), next_word


def _experts(case: Case) -> Built:
    return _decoder(case, "experts")


def _scan(case: Case) -> Built:
    return _decoder(case, "scan")


def _lstm(case: Case) -> Built:
    width, layers, words, rows, length = (
        (1024, 4, 32000, 64, 256) if case.size == "large" else (64, 2, 512, 4, 32)
    )
    batch = _text(case.batch or rows, length, words)
    return models.Lstm(width, layers, words), batch, next_word


def _encoder(case: Case) -> Built:
    width, layers, words, rows, length = (
        (1024, 12, 32000, 16, 512) if case.size == "large" else (64, 2, 512, 4, 64)
    )
    return models.Encoder(width, layers, words), _text(rows, length, words), next_word


def _graph(case: Case) -> Built:
    width, layers, nodes, edges = (
        (512, 4, 50_000, 500_000) if case.size == "large" else (32, 3, 500, 2000)
    )

    def batch() -> tuple[Tensors, Tensors]:
        inputs = {"nodes": torch.randn(nodes, width), "edges": torch.randint(nodes, (2, edges))}
        return inputs, {"labels": torch.randint(7, (nodes,))}

    return models.GraphNet(width, layers, 7), batch, classified


FAMILIES: dict[str, Callable[[Case], Built]] = {
    "mlp": _mlp, "resnet": _resnet, "unet": _unet, "diffusion": _diffusion, "decoder": _decoder, "encoder": _encoder,
    "moe": _experts, "scan": _scan, "lstm": _lstm, "graph": _graph,
}  # fmt: skip
"""Families that need torch alone; `language.FAMILIES` need `transformers`."""
