"""Fit 2-D Gaussians to an image, with densification that replaces the parameter.

graphdeco-inria/gaussian-splatting#897 discusses the surgery on optimizer.state; here it was left out
(DrChainsaw/NaiveNASflux.jl#18 has the same in Julia).
"""
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--iterations", type=int, default=480)
parser.add_argument("--points", type=int, default=300)
parser.add_argument("--densify-every", type=int, default=12)
opts = parser.parse_args()
torch.manual_seed(8)
torch.set_num_threads(1)

SIDE = 40
ys, xs = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
pixels = torch.stack([xs, ys], -1).reshape(-1, 2)
target = torch.stack([xs, ys, (xs - ys).abs()], -1).reshape(-1, 3)
FEATURES = 400  # spherical harmonics, of which the first 3 are used as colour


class Splats:
    def __init__(self, n):
        self.xy = torch.nn.Parameter(torch.rand(n, 2))
        self.sh = torch.nn.Parameter(torch.rand(n, FEATURES) * 0.1)
        self.optimizer = torch.optim.Adam(
            [{"params": [self.xy], "name": "xy", "lr": 2e-3}, {"params": [self.sh], "name": "sh", "lr": 1e-2}]
        )

    def render(self):
        d2 = (pixels[:, None] - self.xy[None]).pow(2).sum(-1)
        weight = torch.softmax(-d2 * 200, dim=1)
        return weight @ self.sh[:, :3]

    def _replace(self, name, tensor):
        for group in self.optimizer.param_groups:
            if group["name"] == name:
                group["params"][0] = torch.nn.Parameter(tensor)
                setattr(self, name, group["params"][0])

    @torch.no_grad()
    def densify_and_prune(self):
        n = self.xy.shape[0]
        order = self.sh.abs().sum(1).argsort(descending=True)
        keep = order[: n - n // 10]
        again = keep[: n - len(keep)]
        self._replace("xy", torch.cat([self.xy[keep], self.xy[again] + 0.01 * torch.randn(len(again), 2)]))
        self._replace("sh", torch.cat([self.sh[keep], self.sh[again]]))


splats = Splats(opts.points)
for it in range(1, opts.iterations + 1):
    loss = (splats.render() - target).abs().mean() + 1e-4 * splats.sh.pow(2).mean()
    splats.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    splats.optimizer.step()
    if it % opts.densify_every == 0:
        splats.densify_and_prune()
    if it % 80 == 0:
        print(f"[{it}] L1 {loss.item():.5f} points {splats.xy.shape[0]}")
