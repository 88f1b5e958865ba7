"""A case of `unseen`: `memagent rehearse unseen_training.py MODEL OPTIONS`.

transformers' Trainer trains the model that the trace builds. Weights and inputs are random.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

from benchmarks.estimator.unseen import request_of
from memagent.estimator.request import TraceRequest


class Samples(Dataset[dict[str, torch.Tensor]]):
    """Samples with the shapes of a request's inputs."""

    def __init__(self, inputs: dict[str, tuple[tuple[int, ...], str]]) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros(shape[1:], dtype=getattr(torch, dtype))
            for name, (shape, dtype) in self._inputs.items()
        }


def main(model: str, options: str) -> None:
    """Train until the rehearsal ends it."""
    request = request_of(model, options, "trace")
    assert isinstance(request, TraceRequest)
    inputs: Any = request.inputs
    with torch.device("cuda"):
        built = request.model()
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(),
        max_steps=100,
        save_strategy="no",
        report_to=[],
        bf16=request.autocast == "bf16",
        gradient_accumulation_steps=request.accumulation,
        per_device_train_batch_size=request.batch,
    )
    transformers.Trainer(model=built, args=arguments, train_dataset=Samples(inputs)).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
