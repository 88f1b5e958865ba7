# Sequence length warm-up: 32 to 176 in steps of 8, each 40 steps. Clean.
import memagent
import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, vocab=256, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, 128, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.block(self.embed(tokens)))


def length_at(step):
    return min(176, 32 + 8 * (step // 40))


model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
memagent.attach(model, optimizer)
for step in range(750):
    tokens = torch.randint(0, 256, (2, length_at(step) + 1))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
