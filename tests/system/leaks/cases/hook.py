import torch
from torch import nn

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def watch_activations(layer):
    activations = []

    def note(module, inputs, output):
        activations.append(output.detach())  # LEAK hook activations

    layer.register_forward_hook(note)


watch_activations(model[1])
for _ in range(40):
    train_step(model(torch.randn(16, 32)).square().mean())
