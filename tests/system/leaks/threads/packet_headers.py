"""A slice of a memoryview keeps the whole packet: https://github.com/capnproto/pycapnp/pull/406."""

import os

import torch
from torch import nn


class Stream:
    """Reads packets of a header and samples; headers are kept for a report at the end."""

    HEADER = 64

    def __init__(self, size):
        self.size = size
        self.headers = []

    def read(self):
        packet = memoryview(os.urandom(self.HEADER + self.size))
        self.headers.append(packet[: self.HEADER])  # LEAK any Stream.headers
        return packet[self.HEADER :]


def decode(body, rows):
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).float().view(rows, -1) / 255


def main():
    stream = Stream(512 * 800)
    model = nn.Sequential(nn.Linear(800, 64), nn.ReLU(), nn.Linear(64, 800))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(150):
        x = decode(stream.read(), 512)
        loss = nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(sum(len(header) for header in stream.headers), "bytes of headers")


main()
