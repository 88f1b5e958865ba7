"""Recommend items: two towers, and profiles of items that are computed once for each of them."""

import torch
from torch import nn


class Catalogue:
    def __init__(self, items: int, words: int = 640) -> None:
        self.words = words
        self.texts = [
            torch.randint(words, (24,), generator=torch.Generator().manual_seed(item))
            for item in range(items)
        ]
        self._profiles = {}

    def profile(self, item: int) -> torch.Tensor:
        if item not in self._profiles:
            counts = torch.bincount(self.texts[item], minlength=self.words).float()
            self._profiles[item] = counts / counts.norm()
        return self._profiles[item]

    def profiles(self, items: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.profile(item) for item in items])


class Towers(nn.Module):
    def __init__(self, users: int, words: int, width: int = 32) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Sequential(nn.Linear(words, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, users: torch.Tensor, profiles: torch.Tensor) -> torch.Tensor:
        return self.users(users) @ self.items(profiles).T


def draw_visits(users: int, items: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    visitors = torch.randint(users, (count,))
    popularity = torch.rand(count).square()
    return visitors, (visitors + (popularity * items / 4).long()) % items


torch.manual_seed(210)
catalogue = Catalogue(items=120)
towers = Towers(users=200, words=catalogue.words)
optimizer = torch.optim.Adagrad(towers.parameters(), lr=0.05)
average = 0.0
for step in range(500):
    users, items = draw_visits(200, 120, count=24)
    scores = towers(users, catalogue.profiles(items))
    loss = nn.functional.cross_entropy(scores, torch.arange(24))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average += (loss.item() - average) / (step + 1)
print(f"{average:.6f}")
