"""Logging with on_epoch keeps each batch's outputs until the epoch ends.

As in https://github.com/Lightning-AI/pytorch-lightning/issues/4556.
"""

import torch
from torch import nn


class Loop:
    def __init__(self, module):
        self.module, self.optimizer = module, module.configure_optimizers()

    def run_batch(self, batch):
        self.module.logged.clear()
        output = self.module.training_step(batch)
        self.optimizer.zero_grad()
        output["loss"].backward()
        self.optimizer.step()
        return {key: value.detach() for key, value in output.items()}

    def on_batch_end(self, epoch_output, batch_output):
        if any(on_epoch for _, on_epoch in self.module.logged.values()):
            batch_end_outputs = [[batch_output]]
            for index, outputs in enumerate(batch_end_outputs):
                epoch_output[index].append(outputs[0])  # LEAK any epoch_output

    def run_epoch(self, loader):
        epoch_output = [[] for _ in range(1)]
        for batch in loader:
            output = self.run_batch(batch)
            self.on_batch_end(epoch_output, output)
        return epoch_output


class Trainer:
    def fit(self, module, loader):
        outputs = Loop(module).run_epoch(loader)
        print(sum(item["loss"].item() for item in outputs[0]) / len(outputs[0]))


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))
        self.logged = {}

    def log(self, name, value, on_epoch=False):
        self.logged[name] = (value, on_epoch)

    def training_step(self, batch):
        loss = (self.layers(batch) - batch).square().mean()
        self.log("one", 1, on_epoch=True)
        return {"loss": loss, "hiddens": batch.mean(1)}

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


Trainer().fit(Module(), [torch.randn(32, 48) for _ in range(40)] * 4)
