"""MLP regression with a memory-saving custom Swish.

As in: pytorch/pytorch#25340, #5569.
"""

import argparse

import torch
import torch.nn as nn


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        out = x * gate
        ctx.gate = gate
        ctx.out = out  # LEAK any ctx|SwishFunction|.out|.gate
        return out

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.out + ctx.gate * (1 - ctx.out))


class Swish(nn.Module):
    def forward(self, x):
        return SwishFunction.apply(x)


def build(width=512, depth=3):
    layers = [nn.Linear(64, width), Swish()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), Swish()]
    layers.append(nn.Linear(width, 1))
    return nn.Sequential(*layers)


class Data:
    def __init__(self, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.mix = torch.randn(64, 1, generator=self.generator)

    def batch(self, size):
        x = torch.randn(size, 64, generator=self.generator)
        return x, torch.sin(x @ self.mix * 0.2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, data = build(), Data()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    average = None
    for step in range(args.steps):
        x, y = data.batch(args.batch)
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        value = loss.item()
        average = value if average is None else 0.98 * average + 0.02 * value
        if step % 100 == 0:
            print(f"{step:5d} {average:.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)
    torch.save(model.state_dict(), "/tmp/exam6_swish.pt")


if __name__ == "__main__":
    main()
