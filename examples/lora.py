"""Train LoRA adapters with PEFT: only they have gradients and optimizer state."""

import torch
from peft import LoraConfig, get_peft_model

import memagent

base = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
model = get_peft_model(base, LoraConfig(r=8, target_modules=["0", "2"]))
optimizer = torch.optim.AdamW(weight for weight in model.parameters() if weight.requires_grad)

with memagent.attach(model, optimizer, project="examples", total_steps=20) as run:
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(32, 1024)), torch.randint(10, (32,))
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log({"loss": loss})
