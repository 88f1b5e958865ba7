"""Transformer encoder training with the profiler on, to see where the time goes.

As in: Lightning-AI/pytorch-lightning#10717.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile, record_function


class Encoder(nn.Module):
    def __init__(self, vocab=256, width=96, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 4, 256, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab)

    def forward(self, ids):
        with record_function("encoder"):
            return self.head(self.encoder(self.embed(ids)))


def batch(generator, size=8, length=32):
    ids = torch.randint(0, 256, (size, length), generator=generator)
    return ids, (ids * 3 + 1) % 256


def train(model, optimizer, steps, generator, prof):
    for step in range(steps):
        ids, target = batch(generator)
        with record_function("forward"):
            loss = F.cross_entropy(model(ids).flatten(0, 1), target.flatten())
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        prof.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=450)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    ) as prof:  # LEAK any prof|profiler|Kineto|native|C memory|outside
        train(model, optimizer, args.steps, generator, prof)
    print("profiled", args.steps, "steps")


if __name__ == "__main__":
    main()
