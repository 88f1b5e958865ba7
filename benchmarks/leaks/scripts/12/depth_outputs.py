"""Train a small depth network, and average the losses of an epoch at its end."""

import torch
import torch.nn.functional as F
from torch import nn


class DepthNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Conv2d(16, 1, 3, padding=1)

    def forward(self, images):
        return F.softplus(self.head(self.body(images)))


class Trainer:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def training_step(self, batch) -> dict:
        images, depth = batch
        predicted = self.model(images)
        loss = (predicted - depth).abs().mean()
        return {"loss": loss, "inverse_depth": 1 / predicted}

    def train(self, batches) -> list:
        outputs = []
        for batch in batches:
            self.optimizer.zero_grad()
            output = self.training_step(batch)
            output["loss"].backward()
            self.optimizer.step()
            outputs.append(output)
        return outputs


def frames(count: int):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        images = torch.rand(4, 3, 48, 48, generator=generator)
        yield images, images.mean(1, keepdim=True) + 0.5


torch.manual_seed(0)
results = Trainer(DepthNet()).train(frames(400))
print(sum(float(output["loss"].detach()) for output in results) / len(results))
