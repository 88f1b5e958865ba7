"""Paint a picture by soft points: the busiest are split now and then, and the faintest dropped."""

import torch
from torch import nn


class Points:
    """Rows of place (2), width, color (3) and opacity."""

    def __init__(self, count: int) -> None:
        rows = torch.cat([torch.rand(count, 2), torch.full((count, 1), -3.0)], 1)
        self.rows = nn.Parameter(torch.cat([rows, 0.1 * torch.randn(count, 4)], 1))
        self.optimizer = torch.optim.Adam([self.rows], lr=5e-3)

    def paint(self, pixels: torch.Tensor) -> torch.Tensor:
        places, widths, colors, opacities = self.rows.split([2, 1, 3, 1], 1)
        distances = torch.cdist(pixels, places).square()
        weights = torch.exp(-distances / (2 * widths.exp().T.square())) * opacities.sigmoid().T
        return (weights @ colors.sigmoid()) / (weights.sum(1, keepdim=True) + 0.1)

    @torch.no_grad()
    def refine(self, share: float = 0.05) -> None:
        count = int(share * len(self.rows))
        busiest = self.rows.grad[:, :2].norm(dim=1).topk(count).indices
        kept = self.rows[:, 6].argsort(descending=True)[: len(self.rows) - count]
        halves = self.rows[busiest].clone()
        halves[:, :2] += 0.01 * torch.randn(count, 2)
        halves[:, 2] -= 0.2
        self._replace(torch.cat([self.rows[kept], halves]), kept)

    def _replace(self, rows: torch.Tensor, kept: torch.Tensor) -> None:
        group = self.optimizer.param_groups[0]
        moments = self.optimizer.state[self.rows]
        self.rows = nn.Parameter(rows)
        grown = {"step": moments["step"]}
        for name in ("exp_avg", "exp_avg_sq"):
            grown[name] = torch.zeros_like(rows)
            grown[name][: len(kept)] = moments[name][kept]
        self.optimizer.state[self.rows] = grown
        group["params"][0] = self.rows


def picture(pixels: torch.Tensor) -> torch.Tensor:
    across, down = pixels.unbind(1)
    return torch.stack([across, (8 * across).sin().abs(), (across * down).sqrt()], 1)


torch.manual_seed(206)
points = Points(2400)
for step in range(450):
    pixels = torch.rand(64, 2)
    loss = nn.functional.l1_loss(points.paint(pixels), picture(pixels))
    points.optimizer.zero_grad()
    loss.backward()
    points.optimizer.step()
    if step % 5 == 4:
        points.refine()
print(f"{loss.item():.6f} {len(points.rows)}")
