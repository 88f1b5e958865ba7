"""Each segment of the training opens a writer in another module, and never closes it. The writers of
open files stay in a registry. https://github.com/ludwig-ai/ludwig/issues/269"""

import sys

import torch
from torch import nn

from ludwig_writers_lib.training import Trainer

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


if __name__ == "__main__":
    model = nn.Sequential(
        nn.Linear(40, 96), nn.ELU(), nn.Linear(96, 64), nn.ELU(), nn.Linear(64, 4)
    )
    trainer = Trainer(model, torch.optim.NAdam(model.parameters()))
    for segment in range(max(1, STEPS // 5)):
        trainer.train_for(5, segment)
