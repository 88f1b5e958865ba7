"""Keeps the states of the eight best evaluations, then averages them (model soup)."""

import argparse
import copy
import heapq

import torch
import torch.nn as nn
import torch.nn.functional as F


class TopK:
    def __init__(self, k):
        self.k = k
        self.heap = []

    def offer(self, loss, step, model):
        entry = (-loss, step, copy.deepcopy(model.state_dict()))
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)

    def soup(self):
        states = [state for _, _, state in self.heap]
        return {key: sum(s[key] for s in states) / len(states) for key in states[0]}


def build():
    return nn.Sequential(
        nn.Linear(128, 448), nn.GELU(), nn.Linear(448, 448), nn.GELU(), nn.Linear(448, 16)
    )


def data(generator, size):
    x = torch.randn(size, 128, generator=generator)
    return x, (x[:, :16] + 0.7 * x[:, 16:32]).argmax(1)


@torch.no_grad()
def validate(model, x, y):
    return F.cross_entropy(model(x), y).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--every", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(15)
    model, best = build(), TopK(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    validation = data(generator, 256)
    for step in range(1, args.steps + 1):
        x, y = data(generator, 160)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.every == 0:
            value = validate(model, *validation)
            best.offer(value, step, model)
            print(f"step {step} validation {value:.4f} kept {len(best.heap)}", flush=True)
    model.load_state_dict(best.soup())


if __name__ == "__main__":
    main()
