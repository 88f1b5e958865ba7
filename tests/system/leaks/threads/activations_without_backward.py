"""Per-sample gradients: the forward hook stores activations that only backward takes. Evaluation
under no_grad in training mode stores them for good.
https://github.com/meta-pytorch/opacus/issues/176"""

import torch
from torch import nn


class GradSampler:
    def __init__(self, model):
        self.model = model
        for layer in model:
            if isinstance(layer, nn.Linear):
                layer.activations = []
                layer.register_forward_hook(self.capture_activations)
                layer.register_full_backward_hook(self.compute_grad_sample)

    def capture_activations(self, layer, inputs, output):
        if layer.training:
            layer.activations.append(inputs[0].detach())  # LEAK any activations

    def compute_grad_sample(self, layer, grad_input, grad_output):
        a = layer.activations.pop()
        g = grad_output[0]
        layer.weight.norm_sample = g.norm(dim=1) * a.norm(dim=1)


def evaluate(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


torch.manual_seed(3)
model = nn.Sequential(
    nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 10)
)
GradSampler(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
accuracy = 0.0
for step in range(150):
    x = torch.randn(384, 128)
    y = torch.randint(0, 10, (384,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    held_out = torch.randn(192, 128)
    accuracy += evaluate(model, held_out, torch.randint(0, 10, (192,)))
print(accuracy / 150)
