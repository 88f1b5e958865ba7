"""Collect the results of each epoch of eighty steps in a table, summed up at its end."""

import pandas as pd
import torch
from torch import nn

torch.manual_seed(59)
model = nn.Sequential(nn.Linear(50, 200), nn.ReLU(), nn.Linear(200, 40))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _epoch in range(7):
    frames = []
    for step in range(80):
        inputs, labels = torch.randn(256, 50), torch.randint(40, (256,))
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows = pd.DataFrame(logits.detach().softmax(1).numpy())
        frames.append(rows.assign(label=labels.numpy(), step=step))
    table = pd.concat(frames, ignore_index=True)
    print(f"{loss.item():.6f} {table['label'].mean():.4f}")
