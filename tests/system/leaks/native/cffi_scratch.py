"""Normalizes batches in scratch memory of the C library."""

import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from cffi import FFI


ffi = FFI()
ffi.cdef("void *calloc(size_t count, size_t size);")
C = ffi.dlopen(None)


class Scratch:
    """Rows of floats that C code may write to."""

    def __init__(self, rows, columns):
        self.shape = rows, columns
        self.address = C.calloc(rows * columns, 4)  # LEAK any native memory

    def array(self):
        size = 4 * self.shape[0] * self.shape[1]
        return np.frombuffer(ffi.buffer(self.address, size), np.float32).reshape(self.shape)


def normalized(x):
    scratch = Scratch(*x.shape).array()
    scratch[:] = x
    scratch -= scratch.mean(0)
    scratch /= scratch.std(0) + 1e-5
    return torch.tensor(scratch)


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
        logits = model(normalized(x.numpy()))
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
