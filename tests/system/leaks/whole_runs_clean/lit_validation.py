"""Lightning module that gathers validation outputs and frees them at the end of each epoch."""

import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class LitRegressor(L.LightningModule):
    def __init__(self, inputs=96, width=416):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 32),
        )
        self.validation_outputs = []
        self.history = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        prediction = self.net(x)
        self.validation_outputs.append({"prediction": prediction, "target": y, "input": x.clone()})

    def on_validation_epoch_end(self):
        prediction = torch.cat([o["prediction"] for o in self.validation_outputs])
        target = torch.cat([o["target"] for o in self.validation_outputs])
        value = F.mse_loss(prediction, target).item()
        self.history.append(value)
        self.validation_outputs.clear()
        print(
            f"epoch {self.current_epoch} step {self.global_step} validation {value:.4f}", flush=True
        )

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3)]


def loader(size, seed, shuffle):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 96, generator=generator)
    y = torch.sin(x[:, :32]) * x[:, 32:64]
    return DataLoader(TensorDataset(x, y), batch_size=128, shuffle=shuffle)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)
    torch.set_num_threads(1)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(LitRegressor(), loader(14_080, 0, True), loader(10_000, 1, False))


if __name__ == "__main__":
    main()
