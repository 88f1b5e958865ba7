"""Write a report of each step as the rows of a page that nobody ever saves."""

import random

import torch
from torch import nn


class Page:
    title = "Training"

    def __init__(self) -> None:
        self.body = []

    def row(self, *cells: object) -> "Page":
        text = "".join(f"<td>{cell}</td>" for cell in cells)
        self.body += [f"<tr>{text}</tr>"]
        return self


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1_000, 64)
        self.recurrent = nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, 1_000)

    def forward(self, tokens):
        return self.out(self.recurrent(self.embed(tokens))[0])


random.seed(7)
torch.manual_seed(7)
page = Page()
model = Translator()
optimizer = torch.optim.Adam(model.parameters())
words = ["".join(random.choices("abcdefghij", k=9)) for _ in range(1_000)]
for step in range(500):
    tokens = torch.randint(1_000, (40, 20))
    logits = model(tokens)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for source, guess in zip(tokens.tolist(), logits.argmax(-1).tolist()):
        page.row(step, *(words[token] for token in source), *(words[token] for token in guess))
print(f"{loss.item():.6f}")
