from collections import defaultdict
from functools import partial

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def save(store, name, module, inputs, output):
    store[name].append(output.detach())  # LEAK hook activations


def attach_hooks(network, store):
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(partial(save, store, name))


def main():
    activations = defaultdict(list)
    attach_hooks(model, activations)
    for step in range(70):
        train_step(model(torch.randn(512, 128)).square().mean())


main()
