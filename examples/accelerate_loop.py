"""Train with accelerate: the tracker attaches to the prepared model and optimizer."""

import torch
from accelerate import Accelerator

from memagent.integrations.accelerate import MemagentTracker

accelerator = Accelerator(
    log_with=MemagentTracker("examples", total_steps=25), gradient_accumulation_steps=2
)
accelerator.init_trackers("examples", config={"lr": 1e-3})
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

for _ in range(50):
    with accelerator.accumulate(model):
        loss = model(torch.randn(32, 256, device=accelerator.device)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    accelerator.log({"loss": loss})
accelerator.end_training()
