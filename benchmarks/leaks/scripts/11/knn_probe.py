"""Pretrain a small vision transformer and collect its class tokens for a nearest-neighbour probe."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, dim: int = 128, tokens: int = 49) -> None:
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.patch = nn.Linear(48, dim)
        self.position = nn.Parameter(torch.randn(1, tokens + 1, dim) * 0.02)
        self.block = nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, patches):
        x = self.patch(patches)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.position
        return self.norm(self.block(x))


class KnnProbe:
    def __init__(self) -> None:
        self.features = []
        self.labels = []

    def update(self, tokens, labels) -> None:
        self.features.append(tokens[:, 0].detach())
        self.labels.append(labels)


def main() -> None:
    torch.manual_seed(0)
    encoder = Encoder()
    head = nn.Linear(128, 10)
    probe = KnnProbe()
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
    for step in range(550):
        patches = torch.randn(24, 49, 48)
        labels = torch.randint(0, 10, (24,))
        tokens = encoder(patches)
        probe.update(tokens, labels)
        loss = F.cross_entropy(head(tokens.mean(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("features", len(probe.features), float(loss))


if __name__ == "__main__":
    main()
