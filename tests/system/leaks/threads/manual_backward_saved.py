"""A layer with its own backward saves inputs in itself; a pass without backward never pops them. As in
https://github.com/pytorch/pytorch/issues/74831."""

import torch
from torch import nn


class ManualLinear(nn.Module):
    """Computes its weight gradient later, from the inputs that it saved."""

    def __init__(self, size_in, size_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size_out, size_in) / size_in**0.5)
        self.saved = []

    def forward(self, x):
        self.saved.append(x.detach())  # LEAK any ManualLinear.saved
        return x @ self.weight.detach().t()

    def backward_weight(self, grad):
        x = self.saved.pop()
        self.weight.grad = grad.t() @ x
        return grad @ self.weight.detach()


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = ManualLinear(96, 192), ManualLinear(192, 96)

    def forward(self, x):
        return self.second(self.first(x))

    def backward(self, grad):
        self.first.backward_weight(self.second.backward_weight(grad))


def main():
    mlp = Mlp()
    optimizer = torch.optim.SGD(mlp.parameters(), lr=1e-3)
    validation = torch.randn(512, 96)
    for step in range(150):
        x = torch.randn(512, 96)
        error = mlp(x) - x
        mlp.backward(2 * error / error.numel())
        optimizer.step()
        validation_loss = (mlp(validation) - validation).square().mean()
    print(validation_loss.item())


main()
