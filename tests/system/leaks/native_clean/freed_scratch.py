"""Normalizes batches in scratch memory of the C library, and frees it."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from cffi import FFI


ffi = FFI()
ffi.cdef("void *calloc(size_t count, size_t size); void free(void *address);")
C = ffi.dlopen(None)


class Scratch:
    def __init__(self, rows, columns):
        self.shape = rows, columns
        self.address = C.calloc(rows * columns, 4)

    def array(self):
        size = 4 * self.shape[0] * self.shape[1]
        return np.frombuffer(ffi.buffer(self.address, size), np.float32).reshape(self.shape)

    def close(self):
        C.free(self.address)


def normalized(x):
    scratch = Scratch(*x.shape)
    rows = scratch.array()
    rows[:] = x
    rows -= rows.mean(0)
    result = torch.tensor(rows)
    scratch.close()
    return result


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
    model = network(256, 384, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step in range(args.steps):
        x = torch.randn(192, 256, generator=generator)
        y = x[:, :8].argmax(1)
        x = normalized(x.numpy())
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
