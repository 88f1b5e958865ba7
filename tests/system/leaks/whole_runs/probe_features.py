"""Distillation-style training: every few steps a fresh probe looks at the features of the trunk.

As in: chr5tphr/zennit#11; fffasttime/MRFI#5.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class FeatureProbe:
    """Grabs the output of a layer during the next forward."""

    def __init__(self, model, layer_name):
        self.layer_name = layer_name
        self.value = None
        layer = dict(model.named_modules())[layer_name]
        self.handle = layer.register_forward_hook(
            self._grab
        )  # LEAK any _forward_hooks|FeatureProbevalue|.value|probe

    def _grab(self, module, inputs, output):
        if self.value is None:
            self.value = (
                output.detach().clone()
            )  # LEAK any _forward_hooks|FeatureProbevalue|.value|probe

    def stats(self):
        flat = self.value.flatten(1)
        return flat.mean().item(), flat.std().item()


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 24, 3, padding=1)
        self.conv2 = nn.Conv2d(24, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.head(x.mean((2, 3)))


def batches(count, size):
    generator = torch.Generator().manual_seed(7)
    for _ in range(count):
        x = torch.randn(size, 3, 32, 32, generator=generator)
        y = torch.randint(0, 10, (size,), generator=generator)
        yield x, y


def train(steps, size, probe_every):
    model = Trunk()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(batches(steps, size)):
        probe = FeatureProbe(model, "conv2") if step % probe_every == 0 else None
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if probe is not None and step % 100 == 0:
            mean, std = probe.stats()
            print(
                f"step {step:5d} loss {loss.item():.4f} conv2 {mean:+.3f} +- {std:.3f}", flush=True
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--probe-every", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train(options.steps, options.batch, options.probe_every)
