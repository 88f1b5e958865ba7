# Outputs of an epoch (60 steps) are kept for the epoch's AUC and cleared in on_epoch_end. Clean.
import memagent
import torch
from torch import nn


class LitModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 64))
        self.training_step_outputs = []

    def training_step(self, batch):
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.training_step_outputs.append({"logits": logits.detach(), "y": y})
        return loss

    def on_train_epoch_end(self):
        logits = torch.cat([o["logits"] for o in self.training_step_outputs])
        labels = torch.cat([o["y"] for o in self.training_step_outputs])
        self.training_step_outputs.clear()
        return (logits.argmax(1) == labels).float().mean().item()


class Trainer:
    def fit(self, model, epochs, steps):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        memagent.attach(model, optimizer)
        for _ in range(epochs):
            for _ in range(steps):
                loss = model.training_step((torch.randn(128, 100), torch.randint(0, 64, (128,))))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.on_train_epoch_end()


Trainer().fit(LitModel(), epochs=18, steps=60)
