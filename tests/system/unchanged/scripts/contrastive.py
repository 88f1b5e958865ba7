"""Two towers, one of them partly frozen, with a learned temperature and gradient accumulation."""
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(24)
image, text = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), nn.EmbeddingBag(20, 4)
scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
image[0].requires_grad_(False)
params = [p for p in [*image.parameters(), *text.parameters(), scale] if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=1e-2)
# memagent.attach([image, text], optimizer)
for step in range(12):
    i = F.normalize(image(torch.randn(6, 8)), dim=-1)
    t = F.normalize(text(torch.randint(0, 20, (6, 3))), dim=-1)
    logits = scale.exp() * i @ t.T
    loss = (F.cross_entropy(logits, torch.arange(6)) + F.cross_entropy(logits.T, torch.arange(6))) / 4
    loss.backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            scale.clamp_(0, math.log(100))
    print(step, loss.item(), scale.item())
