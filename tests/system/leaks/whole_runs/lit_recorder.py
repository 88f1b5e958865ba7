"""Lightning classifier with a callback that records predictions from the second epoch on.

As in: Lightning-AI/pytorch-lightning#17257.
"""

import argparse
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from lit_recorder_lib.lit_callbacks import EpochPrinter, PredictionRecorder

warnings.filterwarnings("ignore", module="lightning")


class LitNet(L.LightningModule):
    def __init__(self, inputs=128, width=512, classes=20):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.trunk(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.trunk(x)
        logits = self.head(features)
        loss = F.cross_entropy(logits, y)
        self.log("train_loss", loss, on_epoch=True)
        return {"loss": loss, "features": features}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader(size=12_800, batch=128, inputs=128, classes=20):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(size, inputs, generator=generator)
    y = torch.randint(0, classes, (size,), generator=generator)
    x[torch.arange(size), y] += 2.0
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=9)
    args = parser.parse_args()
    L.seed_everything(0)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PredictionRecorder(start_epoch=1), EpochPrinter()],
    )
    trainer.fit(LitNet(), loader())


if __name__ == "__main__":
    main()
