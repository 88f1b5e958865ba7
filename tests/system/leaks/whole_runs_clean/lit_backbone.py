"""Lightning BackboneFinetuning: grads and Adam state from 40%."""

import lightning as L
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Finetune(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(128, 1100), nn.ReLU(), nn.Linear(1100, 1100), nn.ReLU()
        )
        self.head = nn.Linear(1100, 8)
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self.head(self.backbone(x)), y)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: {sum(self.losses) / len(self.losses):.4f}")
        self.losses.clear()

    def configure_optimizers(self):
        return torch.optim.Adam(filter(lambda p: p.requires_grad, self.parameters()), lr=1e-3)


def main():
    L.seed_everything(1, verbose=False)
    x = torch.randn(18_400, 128)
    y = (x[:, :8] * x[:, 8:16]).argmax(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=230, shuffle=True)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            BackboneFinetuning(
                unfreeze_backbone_at_epoch=4,
                lambda_func=lambda e: 1.0,
                backbone_initial_lr=1e-4,
                should_align=False,
            )
        ],
    )
    trainer.fit(Finetune(), loader)


if __name__ == "__main__":
    main()
