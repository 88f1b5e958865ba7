"""Told in https://github.com/TRI-ML/packnet-sfm/issues/47: outputs of the epoch hold the loss of each step with its graph."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class HorovodTrainer:
    def train(self, batches):
        outputs = []
        for i, batch in enumerate(batches):
            output = self.training_step(batch, i)
            output["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            outputs.append(output)  # LEAK list outputs
        return outputs

    def training_step(self, batch, *args):
        return {"loss": model(batch).square().mean(), "metrics": {"rows": len(batch)}}


HorovodTrainer().train([torch.rand(16, 32) for _ in range(40)])
