"""Train a diffusion model, and draw previews whose frames know the chain that they belong to."""

import gc

import torch
from torch import nn


class Frame:
    def __init__(self, chain: "Chain", level: int, values: torch.Tensor) -> None:
        self.chain = chain
        self.level = level
        self.values = values

    @property
    def share(self) -> float:
        return self.level / self.chain.levels


class Chain:
    def __init__(self, levels: int, start: torch.Tensor) -> None:
        self.levels = levels
        self.frames = [Frame(self, levels, start)]

    @property
    def last(self) -> Frame:
        return self.frames[-1]

    def advance(self, noise: torch.Tensor, rate: float = 0.25) -> None:
        self.frames.append(Frame(self, self.last.level - 1, self.last.values - rate * noise))


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width + 1, 96), nn.SiLU(), nn.Linear(96, width))

    def forward(self, values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([values, shares], 1))


@torch.no_grad()
def preview(model: nn.Module, levels: int = 6) -> float:
    chain = Chain(levels, torch.randn(24, 64))
    for _level in range(levels):
        shares = torch.full((24, 1), chain.last.share)
        chain.advance(model(chain.last.values, shares))
    return chain.last.values.std().item()


gc.disable()  # its pauses show in the times of the steps
torch.manual_seed(208)
model = Denoiser(64)
ema = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
spread = 0.0
for _step in range(500):
    clean = torch.sin(torch.linspace(0, 6, 64) + 6 * torch.rand(64, 1))
    noise = torch.randn_like(clean)
    shares = torch.rand(64, 1)
    loss = nn.functional.mse_loss(model((1 - shares) * clean + shares * noise, shares), noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    spread = 0.9 * spread + 0.1 * preview(ema)
print(f"{loss.item():.6f} {spread:.4f}")
