"""Train a head at each step, and its sparse embeddings at the end of a round of seventy."""

import torch
from torch import nn

torch.manual_seed(23)
embeddings = nn.Embedding(40_000, 32, sparse=True)
head = nn.Linear(32, 5)
sparse = torch.optim.SGD(embeddings.parameters(), lr=0.1)
dense = torch.optim.Adam(head.parameters(), lr=1e-3)
for step in range(700):
    words, labels = torch.randint(40_000, (64, 8)), torch.randint(5, (64,))
    loss = nn.functional.cross_entropy(head(embeddings(words).mean(1)), labels)
    dense.zero_grad()
    loss.backward()
    dense.step()
    if step % 70 == 69:
        sparse.step()
        sparse.zero_grad()
print(f"{loss.item():.6f}")
