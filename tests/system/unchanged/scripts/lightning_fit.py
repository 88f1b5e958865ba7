# requires: lightning
"""Lightning's Trainer: a module with logging, a checkpoint callback and a test."""
import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"size": 8})
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def training_step(self, batch, index):
        loss = self.net(batch[0]).pow(2).mean()
        self.log("loss", loss)
        print(index, loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("value", self.net(batch[0]).abs().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


L.seed_everything(34, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(32, 4))
loader = torch.utils.data.DataLoader(data, batch_size=8)
checkpoint = ModelCheckpoint(dirpath="checkpoints", save_last=True, save_top_k=1, monitor="value")
trainer = L.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[checkpoint], gradient_clip_val=1.0)
trainer.fit(Module(), loader, loader)
print(trainer.callback_metrics, trainer.global_step, checkpoint.best_model_score)
print(sorted(torch.load(checkpoint.last_model_path, weights_only=False)))
