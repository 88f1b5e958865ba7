# Thread: huggingface/transformers#8143 "Trainer makes RAM go out of memory after a while" (data side); the
# pattern is from pages on itertools.chain in data pipelines.
# Pattern: hard batches are to be seen again, so the stream is wrapped: stream = chain(stream, [batch]).
# As the base stream never ends, nothing behind it is ever consumed. Held by C iterators only.
# Expected: the assignment to `stream`, holder `stream`.
import itertools

import memagent
import torch
from torch import nn


def corpus():
    generator = torch.Generator().manual_seed(0)
    while True:
        yield (
            torch.randn(96, 256, generator=generator),
            torch.randint(0, 8, (96,), generator=generator),
        )  # ALLOCATES


def main():
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    stream = corpus()
    average = None
    for step in range(1000):
        x, y = next(stream)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        average = value if average is None else 0.95 * average + 0.05 * value
        if value > average * 1.005:
            stream = itertools.chain(stream, [(x, y)])  # LEAK any stream


main()
