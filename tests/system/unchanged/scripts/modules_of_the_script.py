"""The script's folder is first on the path, with modules whose names memagent or Python use too."""
import os
import sys

import torch

os.makedirs("plugins", exist_ok=True)
sys.path.insert(0, "plugins")
for name in ("settings", "run", "hooks", "attach", "estimator", "wire"):
    with open(f"plugins/{name}.py", "w") as file:
        file.write(f"NAME = {name!r}\n")
import attach
import hooks
import run
import settings

sys.dont_write_bytecode = True
torch.manual_seed(64)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)
for step in range(5):
    model(torch.randn(4, 4)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(settings.NAME, run.NAME, hooks.NAME, attach.NAME, model.weight.tolist())
for root, folders, files in os.walk("plugins"):
    for file in files:
        if file.endswith(".pyc"):
            os.remove(os.path.join(root, file))
