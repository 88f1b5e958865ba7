"""Distil a student from an average of teachers: its own copies, of which the last 20 are kept."""

import copy
from collections import deque

import torch
from torch import nn


class Teachers:
    def __init__(self, kept: int, every: int) -> None:
        self.copies = deque(maxlen=kept)
        self.every = every

    def consider(self, step: int, student: nn.Module) -> None:
        if step % self.every == 0:
            teacher = copy.deepcopy(student).requires_grad_(False).eval()
            self.copies.append(teacher)

    def targets(self, inputs: torch.Tensor, temperature: float = 2.0) -> torch.Tensor:
        chosen = list(self.copies)[:: max(1, len(self.copies) // 4)]
        scores = torch.stack([teacher(inputs) for teacher in chosen])
        return (scores / temperature).softmax(2).mean(0)


class Student(nn.Module):
    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, 640), nn.ReLU(), nn.Dropout(0.1), nn.Linear(640, classes)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


torch.manual_seed(216)
rules = torch.randn(64, 8)
student = Student(64, 8)
teachers = Teachers(kept=20, every=8)
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=600)
for step in range(600):
    teachers.consider(step, student)
    inputs = torch.randn(64, 64)
    labels = (inputs @ rules).argmax(1)
    scores = student(inputs)
    softened = (scores / 2.0).log_softmax(1)
    loss = nn.functional.cross_entropy(scores, labels)
    loss = loss + nn.functional.kl_div(softened, teachers.targets(inputs), reduction="batchmean")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
print(f"{loss.item():.6f} {len(teachers.copies)}")
