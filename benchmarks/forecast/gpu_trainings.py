"""What the programs of `gpu_dying.py` and `gpu_living.py` share: their set, and common trainings.

Each program is a loop as a person writes it, over the methods of `Run`; it yields after each
optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from benchmarks.forecast.gpu_models import ConvNet, Transformer
from benchmarks.forecast.gpu_run import Run
from benchmarks.forecast.program_set import ProgramSet

GPU_PROGRAMS = ProgramSet(seed=2611)
dies, lives = GPU_PROGRAMS.dies, GPU_PROGRAMS.lives
Steps = Iterator[None]


def language_model(run: Run) -> tuple[Transformer, Optimizer]:
    model = Transformer(run.width, run.layers)
    return model, AdamW(run.ready(model), lr=1e-4)


def classifier(run: Run) -> tuple[ConvNet, Optimizer]:
    model = ConvNet(16 * run.source.randint(1, 3))
    return model, SGD(run.ready(model), lr=0.01, momentum=0.9)


def classes(scores: Tensor) -> Tensor:
    return scores.square().mean()


class Episode:
    """A rollout that refers to itself through its first frame."""

    def __init__(self, frames: Tensor) -> None:
        self.frames, self.first = frames, self
