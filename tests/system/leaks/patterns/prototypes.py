import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Prototypes(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = {label: torch.zeros(0, 64) for label in range(classes)}

    def update(self, features, label):
        old = self.features[label]
        self.features[label] = torch.cat([old, features.detach()])  # LEAK any Prototypes.features

    def mean(self, label):
        return self.features[label].mean(0)


bank = Prototypes(4)
for step in range(90):
    features = model[:2](torch.randn(256, 128))
    label = step % 4
    bank.update(features, label)
    train_step((features - bank.mean(label)).square().mean() + model(torch.randn(4, 128)).mean())
