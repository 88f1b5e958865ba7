"""Each stage wraps the environment once more, whose older wrappers keep their buffers.

# WINDOW 60
"""

import torch


class Task:
    def observe(self):
        return torch.randn(16, 64)


class Noisy:
    def __init__(self, inner):
        self.inner = inner
        self.settings = {"noise": torch.randn(64, 64), "scale": 0.1}

    def observe(self):
        return self.inner.observe() + self.settings["scale"] * self.settings["noise"][:16]


class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.environment = Task()

    def next_stage(self):
        self.environment = Noisy(self.environment)  # LEAK any environment

    def step(self):
        loss = self.model(self.environment.observe()).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


trainer = Trainer()
for step in range(70):
    trainer.step()
    if step % 5 == 0:
        trainer.next_stage()
