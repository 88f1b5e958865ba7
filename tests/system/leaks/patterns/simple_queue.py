import queue

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Publisher:
    def __init__(self):
        self.outbox = queue.SimpleQueue()

    def publish(self, name, tensor):
        self.outbox.put((name, tensor))  # LEAK any Publisher.outbox


publisher = Publisher()
for step in range(70):
    output = model(torch.randn(512, 128))
    train_step(output.square().mean())
    publisher.publish("output", output.detach().clone())
