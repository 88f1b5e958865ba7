"""Adds the words of each batch to the vocabulary of a tokenizer."""

import argparse
import random

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
import torch
import torch.nn as nn
import torch.nn.functional as F


class Words:
    def __init__(self, seed=0):
        self.tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
        self.random = random.Random(seed)

    def batch(self, size):
        words = [f"{self.random.getrandbits(60):x}" * 8 for _ in range(size)]
        self.tokenizer.add_tokens(words)  # LEAK any tokenizer
        return torch.tensor([self.tokenizer.token_to_id(word) for word in words]) % 8


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
    parser.add_argument("--steps", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(5)
    model = network(64, 384, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    words = Words()
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        y = words.batch(192)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
