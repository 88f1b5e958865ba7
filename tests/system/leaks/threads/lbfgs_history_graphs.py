"""The window of L-BFGS steps has ten rows, but each was made with a graph that leads to the rows
before: https://github.com/TorchSim/torch-sim/pull/559."""

from types import SimpleNamespace

import torch
from torch import nn

HISTORY = 10


def energy_and_forces(model, positions):
    positions = positions.detach().requires_grad_(True)
    energy = model(positions).sum()
    (gradient,) = torch.autograd.grad(energy, positions, create_graph=True)
    return energy, -gradient, positions


def relax_step(model, state):
    energy, forces, positions = energy_and_forces(model, state.positions)
    moved = positions + 0.01 * forces
    s_new = moved - positions
    rows = [state.s_history[1 - HISTORY :], s_new.unsqueeze(0)]
    state.s_history = torch.cat(rows)  # LEAK any state.s_history
    direction = state.s_history.mean(dim=0)
    state.positions = (positions + 0.1 * direction).detach()
    return energy, forces


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    state = SimpleNamespace(positions=torch.randn(600, 3), s_history=torch.zeros(0, 600, 3))
    for step in range(150):
        energy, forces = relax_step(model, state)
        loss = forces.detach().square().mean() + (energy / 600 - 1).square()
        gradients = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.grad = gradient
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item(), tuple(state.s_history.shape))


main()
