"""Profiles a few steps of every fifty."""

import argparse

from torch.profiler import ProfilerActivity, profile, schedule
import torch
import torch.nn as nn
import torch.nn.functional as F


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
    prof = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=40, warmup=2, active=8),
        record_shapes=True,
        on_trace_ready=lambda done: print(len(done.events()), "events", flush=True),
    )
    prof.start()
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        prof.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
