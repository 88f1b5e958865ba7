"""Train on records of a health export, which are parsed as they arrive."""

import random
from collections.abc import Iterator
from xml.etree.ElementTree import XMLPullParser

import torch
from torch import nn

draw = random.Random(3)


def records(count: int) -> Iterator[list[float]]:
    parser = XMLPullParser(["end"])
    parser.feed("<export>")
    for number in range(count):
        values = " ".join(f"{draw.gauss(0, 1):.4f}" for _ in range(64))
        parser.feed(f'<record id="{number}">{values}</record>')
        for _, element in parser.read_events():
            yield [float(value) for value in element.text.split()]


torch.manual_seed(3)
rows = records(600 * 64)
model = nn.Sequential(nn.Linear(63, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _step in range(600):
    batch = torch.tensor([next(rows) for _ in range(64)])
    loss = nn.functional.mse_loss(model(batch[:, 1:]), batch[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f}")
