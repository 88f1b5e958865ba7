import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    on_end = []
    for step in range(70):
        output = model(torch.randn(512, 128))
        train_step(output.square().mean())
        summary = output.detach()
        on_end.append(lambda value=summary: value.mean().item())  # LEAK any on_end
    print(sum(call() for call in on_end))


main()
