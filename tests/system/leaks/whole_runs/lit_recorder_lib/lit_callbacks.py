"""Callbacks shared by the Lightning experiments."""

from collections import defaultdict

import lightning as L


class PredictionRecorder(L.Callback):
    """Keeps predictions of each epoch so that confusion plots can be made of any of them."""

    def __init__(self, start_epoch=0):
        self.start_epoch = start_epoch
        self.records = defaultdict(dict)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.current_epoch >= self.start_epoch:
            self.records[trainer.current_epoch][batch_idx] = outputs["features"]  # LEAK any records

    def on_train_epoch_end(self, trainer, pl_module):
        epoch = trainer.current_epoch
        if self.records[epoch]:
            last = self.records[epoch][max(self.records[epoch])]
            pl_module.log("feature_norm", last.norm(dim=1).mean())


class EpochPrinter(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        loss = trainer.callback_metrics.get("train_loss")
        print(
            f"epoch {trainer.current_epoch} step {trainer.global_step} loss {float(loss):.4f}",
            flush=True,
        )
