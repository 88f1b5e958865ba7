"""Fits a picture with 2-D Gaussians that are cloned and pruned as training goes on.

As in: graphdeco-inria/gaussian-splatting#897; gsplat PR#931.
"""

import argparse

import torch


class Splats:
    def __init__(self, count, lr=0.02):
        self.params = {
            "means": torch.nn.Parameter(torch.rand(count, 2)),
            "colours": torch.nn.Parameter(torch.rand(count, 12)),
            "features": torch.nn.Parameter(torch.randn(count, 96) * 0.01),
            "scales": torch.nn.Parameter(torch.full((count,), -2.5)),
        }
        groups = [{"params": [p], "name": n, "lr": lr} for n, p in self.params.items()]
        self.optimizer = torch.optim.Adam(groups)

    def __len__(self):
        return len(self.params["means"])

    def render(self, points, chosen):
        means, scales = self.params["means"][chosen], self.params["scales"][chosen]
        distance = torch.cdist(points, means)
        weight = torch.exp(-((distance / scales.exp()) ** 2))
        weight = weight / (weight.sum(1, keepdim=True) + 1e-4)
        colour = weight @ self.params["colours"][chosen]
        return colour[:, :3] + (weight @ self.params["features"][chosen])[:, :3]

    @torch.no_grad()
    def resample(self):
        """Replace dead Gaussians with clones of living ones; the number stays the same."""
        keep = torch.randperm(len(self))[: int(0.9 * len(self))]
        clones = keep[torch.randint(0, len(keep), (len(self) - len(keep),))]
        index = torch.cat([keep, clones])
        for group in self.optimizer.param_groups:
            old = group["params"][0]
            stored = self.optimizer.state.get(old)
            new = torch.nn.Parameter(old[index].clone())
            if stored is not None:
                self.optimizer.state[new] = {  # LEAK any optimizer.state|.state|optimizer
                    "step": stored["step"],
                    "exp_avg": stored["exp_avg"][index],
                    "exp_avg_sq": stored["exp_avg_sq"][index],
                }
            group["params"][0] = new  # LEAK any optimizer.state|.state|optimizer
            self.params[group["name"]] = new


def picture(points):
    return torch.stack(
        [torch.sin(6 * points[:, 0]), torch.cos(5 * points[:, 1]), points.prod(1)], 1
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--resample-every", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    splats = Splats(args.count)
    for step in range(1, args.steps + 1):
        points = torch.rand(384, 2)
        chosen = torch.randperm(len(splats))[:900]
        loss = (splats.render(points, chosen) - picture(points)).abs().mean()
        splats.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        splats.optimizer.step()
        if step % args.resample_every == 0:
            splats.resample()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} n {len(splats)}", flush=True)


if __name__ == "__main__":
    main()
