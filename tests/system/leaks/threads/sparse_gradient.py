"""The gradient of a sparse operand gets longer with each update.

As in https://github.com/pytorch/pytorch/issues/34964.
"""

import torch
from torch import nn

words = nn.EmbeddingBag(5000, 64, sparse=True, mode="sum")
head = nn.Linear(64, 8)
head_optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(150):
    tokens = torch.randint(0, 5000, (16, 20))
    loss = nn.functional.cross_entropy(head(words(tokens)), torch.randint(0, 8, (16,)))
    head_optimizer.zero_grad()
    loss.backward()  # LEAK any words
    head_optimizer.step()
    with torch.no_grad():
        words.weight -= 0.01 * words.weight.grad
