"""Contrastive pre-training; embeddings of every step are exported.

As in: googleapis/python-logging#56-like; writer queue threads.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

from contrastive_export_lib.background_writer import EmbeddingWriter


class Encoder(nn.Module):
    def __init__(self, inputs=192, width=384, out=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, out),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


def views(generator, size, inputs=192):
    base = torch.randn(size, inputs, generator=generator)
    one = base + 0.2 * torch.randn(size, inputs, generator=generator)
    two = base + 0.2 * torch.randn(size, inputs, generator=generator)
    return one, two


def info_nce(a, b, temperature=0.1):
    logits = a @ b.t() / temperature
    target = torch.arange(len(a))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(6)
    encoder, writer = Encoder(), EmbeddingWriter()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for step in range(args.steps):
        one, two = views(generator, args.batch)
        a, b = encoder(one), encoder(two)
        loss = info_nce(a, b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.submit(step, a)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} written {writer.written}", flush=True)


if __name__ == "__main__":
    main()
