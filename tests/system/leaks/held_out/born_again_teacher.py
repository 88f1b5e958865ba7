"""The student becomes the next teacher by a deep copy, which copies the teacher's teacher too."""

import copy
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU()
        )
        self.classifier = nn.Linear(384, 10)
        self.teacher = None

    def forward(self, x):
        return self.classifier(self.features(x))

    def distillation_loss(self, x, y):
        logits = self(x)
        loss = nn.functional.cross_entropy(logits, y)
        if self.teacher is not None:
            with torch.no_grad():
                soft = self.teacher(x).softmax(1)
            loss = loss + nn.functional.kl_div(logits.log_softmax(1), soft, reduction="batchmean")
        return loss

    def graduate(self):
        self.teacher = copy.deepcopy(self).requires_grad_(False)  # LEAK any teacher


student = Student()
parameters = [*student.features.parameters(), *student.classifier.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01)
for step in range(STEPS):
    x, y = torch.randn(32, 128), torch.randint(0, 10, (32,))
    loss = student.distillation_loss(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 16 == 15:
        student.graduate()
