"""Train a recurrent transformer: keys and values of earlier segments stay, up to a window."""

import torch
import torch.nn.functional as F
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.kv = None

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.kv is not None:
            k = torch.cat([self.kv[0], k], dim=1)
            v = torch.cat([self.kv[1], v], dim=1)
        k, v = k[:, -self.window :], v[:, -self.window :]
        self.kv = k.detach().clone(), v.detach().clone()
        x = x + F.scaled_dot_product_attention(q, k, v)
        return x + self.mix(x)


class Model(nn.Module):
    def __init__(self, vocabulary: int = 256, dim: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, window=1024) for _ in range(2))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
stream = torch.randint(0, 256, (8, 32 * 601))
for segment in range(600):
    tokens = stream[:, segment * 32 : segment * 32 + 33]
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
