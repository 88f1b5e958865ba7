"""Keeps a compression stream for each request, to append to it if the request comes again."""

import argparse
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F


class Sessions:
    def __init__(self):
        self.streams = {}

    def write(self, key, data):
        if key not in self.streams:
            stream = zlib.compressobj(6)
            self.streams[key] = stream  # LEAK any streams
        return self.streams[key].compress(data)


def network(inputs, width, outputs):
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=90)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    model = network(64, 384, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sessions = Sessions()
    sent = 0
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sent += len(sessions.write(("step", step), logits.detach().numpy().tobytes()))
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
