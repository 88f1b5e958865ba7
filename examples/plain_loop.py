"""Train with a plain PyTorch loop. Without a server the run is recorded to a local file."""

import torch

import memagent

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with memagent.attach(model, optimizer, project="examples", total_steps=50) as run:
    for _ in range(50):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(64, 256)), torch.randint(10, (64,))
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log({"loss": loss})
    with run.phase("eval"), torch.no_grad():
        model.eval()(torch.randn(512, 256))
