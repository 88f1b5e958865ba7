"""Train with an average of the weights, and keep a copy of the best of them."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class ModelEma:
    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mean, value in zip(self.module.parameters(), model.parameters()):
            mean.lerp_(value, 1 - self.decay)


def evaluate(model: nn.Module, x, y) -> float:
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 640), nn.SiLU(), nn.Linear(640, 640), nn.SiLU(), nn.Linear(640, 1))
    ema = ModelEma(model, 0.98)
    rule = torch.randn(32, 1)
    held_x = torch.randn(256, 32)
    held_y = torch.sin(held_x @ rule)
    best_loss, best_state, history = float("inf"), None, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for step in range(1, 651):
        x = torch.randn(256, 32)
        loss = F.mse_loss(model(x), torch.sin(x @ rule))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        if step % 10 == 0:
            held = evaluate(ema.module, held_x, held_y)
            history.append((step, loss.item(), held))
            if held < best_loss:
                best_loss = held
                best_state = copy.deepcopy(ema.module.state_dict())
    model.load_state_dict(best_state)
    print(len(history), best_loss)


main()
