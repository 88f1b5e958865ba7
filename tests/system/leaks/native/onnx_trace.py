"""Writes each activation into a protocol buffer that nobody saves."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from onnx import GraphProto, TensorProto


class Trace:
    def __init__(self):
        self.graph = GraphProto(name="trace")

    def add(self, name, tensor):
        entry = self.graph.initializer.add()  # LEAK any graph
        entry.name = name
        entry.data_type = TensorProto.FLOAT
        entry.dims.extend(tensor.shape)
        entry.raw_data = tensor.numpy().tobytes()  # LEAK any graph|native memory


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
    model = network(64, 320, 8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    trace = Trace()
    for step in range(args.steps):
        x = torch.randn(192, 64, generator=generator)
        y = x[:, :8].argmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trace.add(f"logits{step}", torch.cat([logits, logits * 2, x], 1).detach())
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
