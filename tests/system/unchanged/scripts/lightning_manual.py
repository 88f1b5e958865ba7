# requires: lightning
"""Manual optimization with two optimizers, and LBFGS' closure in automatic optimization."""
import logging
import warnings

import lightning as L
import torch

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        first, second = self.optimizers()
        loss = self.b(self.a(batch[0])).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        value = self.b(self.a(batch[0]).detach()).pow(2).mean()
        second.zero_grad()
        self.manual_backward(value)
        second.step()
        print(index, loss.item(), value.item(), type(first).__name__)

    def configure_optimizers(self):
        return [torch.optim.Adam(m.parameters(), lr=0.01) for m in (self.a, self.b)]


class Second(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        loss = self.a(batch[0]).pow(2).mean()
        print("closure", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), max_iter=3)


L.seed_everything(35, verbose=False)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 4)), batch_size=8)
for module in (GAN(), Second()):
    options = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    trainer = L.Trainer(max_epochs=2, **options)
    trainer.fit(module, loader)
    print(trainer.global_step, sum(p.sum().item() for p in module.parameters()))
