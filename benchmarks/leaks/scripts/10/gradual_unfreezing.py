"""Fine-tuning with gradual unfreezing in the style of Lightning: optimizer states come stage by stage.

Lightning-AI/pytorch-lightning#1510: growth during the first epoch only.
"""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, depth=10, dim=384):
        super().__init__()
        self.stem = nn.Linear(128, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(depth)
        )
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Module:
    def __init__(self):
        self.net = Encoder()
        self.net.requires_grad_(False)
        self.net.head.requires_grad_(True)
        self.outputs = []

    def configure_optimizers(self):
        return torch.optim.AdamW(self.net.parameters(), lr=3e-4)

    def on_train_epoch_start(self, epoch):
        if 1 <= epoch <= len(self.net.blocks):
            self.net.blocks[-epoch].requires_grad_(True)

    def training_step(self, batch, index):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.outputs.append({"loss": loss.item(), "hits": (logits.argmax(-1) == y).float().detach()})
        return loss

    def on_train_epoch_end(self, epoch):
        hits = torch.cat([o["hits"] for o in self.outputs]).mean().item()
        mean = sum(o["loss"] for o in self.outputs) / len(self.outputs)
        print(f"epoch {epoch:2d} loss {mean:.4f} acc {hits:.3f}")
        self.outputs.clear()


class Loop:
    def __init__(self, epochs, batches):
        self.epochs, self.batches = epochs, batches

    def data(self):
        for _ in range(self.batches):
            x = torch.randn(64, 128)
            yield x, x[:, :5].argmax(-1)

    def fit(self, module):
        optimizer = module.configure_optimizers()
        for epoch in range(self.epochs):
            module.on_train_epoch_start(epoch)
            for index, batch in enumerate(self.data()):
                optimizer.zero_grad(set_to_none=True)
                module.training_step(batch, index).backward()
                optimizer.step()
            module.on_train_epoch_end(epoch)


torch.manual_seed(7)
torch.set_num_threads(1)
Loop(epochs=16, batches=35).fit(Module())
