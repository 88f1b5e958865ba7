"""Autoencoder whose latent codes are traced for the report.

As in: tensorflow#48888-like; python contextvars threads.
"""

import argparse

import torch
import torch.nn as nn

from traced_autoencoder_lib import tracing


class AutoEncoder(nn.Module):
    def __init__(self, inputs=400, hidden=320, latent=64):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, inputs))

    def forward(self, x):
        code = tracing.trace("latent", self.encode(x))
        return tracing.trace("reconstruction", self.decode(code))


def sparse_codes(generator, size, inputs=400):
    basis = torch.sin(torch.arange(inputs)[None] * torch.linspace(0.01, 0.5, 16)[:, None])
    weights = torch.randn(size, 16, generator=generator)
    return weights @ basis + 0.05 * torch.randn(size, inputs, generator=generator)


def report(step, loss):
    code = tracing.last("latent")
    active = (code.abs() > 0.1).float().mean().item()
    print(f"step {step} loss {loss:.4f} active {active:.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=160)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(4)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = sparse_codes(generator, args.batch)
        loss = (model(x) - x).pow(2).mean() + 1e-3 * tracing.last("latent").abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            report(step, loss.item())


if __name__ == "__main__":
    main()
