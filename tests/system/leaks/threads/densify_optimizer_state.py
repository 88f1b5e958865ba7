"""Densification replaces parameters; the optimizer keeps the state of the old ones:
https://github.com/nv-tlabs/3dgrut/pull/93."""

# WINDOW 60
import torch
from torch import nn


class GaussianModel:
    def __init__(self, points):
        self.xyz = nn.Parameter(torch.randn(points, 3))
        self.features = nn.Parameter(torch.randn(points, 45))
        self.optimizer = torch.optim.Adam(
            [
                {"params": [self.xyz], "lr": 1e-3, "name": "xyz"},
                {"params": [self.features], "lr": 1e-3, "name": "features"},
            ]
        )

    def replace_tensors(self, keep):
        """Prune to half of the points and clone the rest: the number stays the same."""
        for group in self.optimizer.param_groups:
            old = group["params"][0]
            state = self.optimizer.state.get(old)
            new = nn.Parameter(torch.cat([old.detach()[keep], old.detach()[keep]]))
            moments = {
                "exp_avg": torch.cat([state["exp_avg"][keep]] * 2),
                "exp_avg_sq": torch.cat([state["exp_avg_sq"][keep]] * 2),
                "step": state["step"],
            }
            group["params"][0] = new
            self.optimizer.state[new] = moments  # LEAK any state
            setattr(self, group["name"], new)


def main():
    model = GaussianModel(6000)
    for step in range(180):
        target = torch.randn(6000, 3)
        loss = (model.xyz - target).square().mean() + model.features.tanh().square().mean()
        model.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        model.optimizer.step()
        if step % 4 == 3:
            model.replace_tensors(torch.randperm(6000)[:3000])


main()
