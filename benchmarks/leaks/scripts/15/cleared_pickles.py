"""Spool episodes with one pickler that forgets what it wrote, in a file that begins anew."""

import io
import pickle

import torch
from torch import nn

torch.manual_seed(43)
file = io.BytesIO()
pickler = pickle.Pickler(file, protocol=5)
model = nn.Sequential(nn.Linear(300, 200), nn.ReLU(), nn.Linear(200, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
shards = 0
for step in range(700):
    states, targets = torch.randn(64, 300), torch.randn(64, 4)
    loss = nn.functional.mse_loss(model(states), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    pickler.dump({"states": states.numpy(), "targets": targets.numpy()})
    pickler.clear_memo()
    if file.tell() > 6_000_000:
        shards += 1
        file.seek(0)
        file.truncate()
print(f"{loss.item():.6f} {shards}")
