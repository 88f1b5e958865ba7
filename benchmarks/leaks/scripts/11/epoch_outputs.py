"""Gather the outputs of an epoch for its report, then start the next epoch with an empty list."""

import torch
import torch.nn.functional as F
from torch import nn


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 400))
        self.step_outputs = []

    def training_step(self, batch):
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.step_outputs.append({"loss": loss.detach(), "logits": logits.detach(), "y": y})
        return loss

    def on_epoch_end(self) -> None:
        logits = torch.cat([output["logits"] for output in self.step_outputs])
        y = torch.cat([output["y"] for output in self.step_outputs])
        accuracy = (logits.argmax(1) == y).float().mean()
        print(f"accuracy {accuracy.item():.3f}")
        self.step_outputs.clear()


class Trainer:
    def __init__(self, epochs: int, steps: int) -> None:
        self.epochs = epochs
        self.steps = steps

    def fit(self, module: Module) -> None:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        for _ in range(self.epochs):
            for _ in range(self.steps):
                batch = torch.randn(320, 256), torch.randint(0, 400, (320,))
                loss = module.training_step(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            module.on_epoch_end()


torch.manual_seed(0)
Trainer(epochs=7, steps=90).fit(Module())
