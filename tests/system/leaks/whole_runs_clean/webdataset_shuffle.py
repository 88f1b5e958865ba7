# webdataset-like shuffle: the buffer takes two samples for each one it gives until it has 3000. Clean.
import random

import memagent
import torch
from torch import nn


def samples():
    while True:
        yield torch.randn(16, 128)


def shuffle(data, bufsize=3000, initial=50, rng=None):
    rng = rng or random.Random(0)
    data = iter(data)
    buf = []
    for sample in data:
        buf.append(sample)
        if len(buf) < bufsize:
            buf.append(next(data))
        if len(buf) >= initial:
            index = rng.randrange(len(buf))
            buf[index], buf[-1] = buf[-1], buf[index]
            yield buf.pop()


def batched(data, n):
    batch = []
    for sample in data:
        batch.append(sample)
        if len(batch) == n:
            yield torch.stack(batch)
            batch = []


def main():
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    for step, batch in enumerate(batched(shuffle(samples()), 8)):
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 850:
            break


main()
