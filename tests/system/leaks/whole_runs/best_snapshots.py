"""Keeps the best checkpoints in memory in a heap, to average their weights at the end.

As in: ray#40014-like; checkpoint-in-memory threads.
"""

import argparse
import copy
import heapq

import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, inputs=144, width=400):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width), nn.GELU()
        )
        self.head = nn.Linear(width, 12)

    def forward(self, x):
        return self.head(self.body(x))


def data(generator, size):
    x = torch.randn(size, 144, generator=generator)
    return x, (x[:, :12] + 0.5 * x[:, 12:24]).argmax(1)


@torch.no_grad()
def evaluate(model, x, y, step, keep=5):
    model.eval()
    loss = F.cross_entropy(model(x), y).item()
    model.train()
    entry = (-loss, step, copy.deepcopy(model.state_dict()))
    heapq.heappush(evaluate.best, entry)  # LEAK any best
    return loss, heapq.nlargest(keep, evaluate.best)[0][1]


evaluate.best = []


def average(entries):
    states = [state for _, _, state in entries]
    return {k: sum(s[k] for s in states) / len(states) for k in states[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--eval-every", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(13)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=7e-4)
    validation = data(generator, 256)
    for step in range(1, args.steps + 1):
        x, y = data(generator, 160)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.eval_every == 0:
            value, best = evaluate(model, *validation, step)
            if step % 100 == 0:
                print(f"step {step} val {value:.4f} best at {best}", flush=True)
    model.load_state_dict(average(heapq.nlargest(5, evaluate.best)))


if __name__ == "__main__":
    main()
