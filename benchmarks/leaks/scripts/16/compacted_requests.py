"""Serve prompts by priority; the heap is made anew when 150 of its entries are cancelled."""

import heapq
import itertools

import torch
from torch import nn


class Requests:
    def __init__(self) -> None:
        self.heap = []
        self.cancelled = set()
        self.numbers = itertools.count()

    def add(self, priority: float, prompt: torch.Tensor) -> int:
        number = next(self.numbers)
        heapq.heappush(self.heap, (priority, number, prompt))
        return number

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)
        if len(self.cancelled) >= 150:
            self.heap = [entry for entry in self.heap if entry[1] not in self.cancelled]
            heapq.heapify(self.heap)
            self.cancelled.clear()

    def pop(self) -> torch.Tensor:
        _, _, prompt = heapq.heappop(self.heap)
        return prompt


torch.manual_seed(47)
requests = Requests()
model = nn.Sequential(nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(700):
    requests.add(0.0, torch.randn(64, 256))
    slow = requests.add(1.0 + step, torch.randn(64, 256))
    batch = requests.pop()
    loss = nn.functional.mse_loss(model(batch), batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    requests.cancel(slow)
print(f"{loss.item():.6f}")
