"""A checkpoint is saved, everything is made anew, loaded, and trained on."""
import random

import numpy as np
import torch


def build():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)


def train(model, optimizer, scheduler, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4) * random.random() + np.random.rand()).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(loss.item(), scheduler.get_last_lr())


random.seed(28), np.random.seed(28), torch.manual_seed(28)
model, optimizer, scheduler = build()
# memagent.attach(model, optimizer)
train(model, optimizer, scheduler, 8)
torch.save({"m": model.state_dict(), "o": optimizer.state_dict(), "s": scheduler.state_dict(), "torch": torch.get_rng_state(), "numpy": np.random.get_state()[1].tolist(), "python": random.getstate()}, "checkpoint.pt")
del model, optimizer, scheduler
model, optimizer, scheduler = build()
checkpoint = torch.load("checkpoint.pt", weights_only=True)
model.load_state_dict(checkpoint["m"])
optimizer.load_state_dict(checkpoint["o"])
scheduler.load_state_dict(checkpoint["s"])
torch.set_rng_state(checkpoint["torch"])
train(model, optimizer, scheduler, 8)
