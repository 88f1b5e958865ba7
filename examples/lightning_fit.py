"""Train with Lightning: add one callback."""

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from memagent.integrations.lightning import MemagentCallback


class Regressor(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)
        )

    def training_step(self, batch, _index):
        loss = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", self.net(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


data = TensorDataset(torch.randn(512, 256))
trainer = pl.Trainer(
    max_epochs=2,
    callbacks=[MemagentCallback(project="examples")],
    logger=False,
    enable_checkpointing=False,
)
trainer.fit(Regressor(), DataLoader(data, batch_size=32), DataLoader(data, batch_size=64))
