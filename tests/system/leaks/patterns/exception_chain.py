import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


last_error = None


def check(batch):
    activations = model(batch)
    raise ValueError(f"{activations.shape}")


for step in range(70):
    train_step(model(torch.randn(256, 128)).square().mean())
    try:
        try:
            check(torch.randn(256, 128))
        except ValueError as error:
            raise RuntimeError("bad step") from (last_error or error)
    except RuntimeError as error:
        last_error = error  # LEAK exception last_error
