"""Train a sentence classifier whose attention masks are cached by the lengths of the batch."""

import torch
import torch.nn.functional as F
from torch import nn


class MaskedAttention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.masks = {}

    def mask_for(self, lengths, size: int):
        if lengths not in self.masks:
            valid = torch.arange(size)[None, :] < lengths[:, None]
            bias = torch.zeros(len(lengths), size, size).masked_fill(~valid[:, None, :], -1e9)
            self.masks[lengths] = bias
        return self.masks[lengths]

    def forward(self, x, lengths):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return (scores + self.mask_for(lengths, x.shape[1])).softmax(-1) @ v


class Classifier(nn.Module):
    def __init__(self, dim: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(5000, dim)
        self.attention = MaskedAttention(dim)
        self.out = nn.Linear(dim, 2)

    def forward(self, ids, lengths):
        x = self.embed(ids)
        return self.out((x + self.attention(x, lengths)).mean(1))


def batches(count: int):
    for _ in range(count):
        lengths = torch.randint(20, 97, (20,))
        yield torch.randint(0, 5000, (20, 96)), lengths, torch.randint(0, 2, (20,))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
for step, (ids, lengths, labels) in enumerate(batches(650)):
    loss = F.cross_entropy(model(ids, lengths), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", float(loss))
