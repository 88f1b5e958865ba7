"""Memory rises with the longest batch so far; nothing is kept.

As in https://github.com/facebookresearch/fairseq/issues/232.
"""

import random

import torch
from torch import nn

random.seed(0)
model = nn.GRU(16, 32, batch_first=True)
optimizer = torch.optim.Adam(model.parameters())
seen, longest = 0, 0
for step in range(110):
    length = min(4 + step // 2 + random.randrange(12), 70)
    count = max(1, 400 // length)
    output, _ = model(torch.randn(count, length, 16))
    loss = output.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen, longest = seen + count, max(longest, length)
print(seen, longest)
