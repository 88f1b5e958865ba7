"""Choose what to label next of a stream: an uncertain sample of a batch, by its embedding."""

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Linear(width, classes)

    def embed(self, samples: torch.Tensor) -> torch.Tensor:
        return self.body(samples).tanh()

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(samples))


class Candidates:
    """At most one candidate a batch, that's unlike the ones of the last 20 batches."""

    def __init__(self) -> None:
        self.embeddings = {}

    def is_new(self, embedding: torch.Tensor) -> bool:
        recent = list(self.embeddings.values())[-20:]
        if not recent:
            return True
        return bool(torch.cosine_similarity(torch.stack(recent), embedding[None]).max() < 0.99)

    def consider(self, numbers: torch.Tensor, rows: torch.Tensor, entropies: torch.Tensor) -> None:
        best = int(entropies.argmax())
        if self.is_new(rows[best]):
            self.embeddings[int(numbers[best])] = rows[best]


def entropy(scores: torch.Tensor) -> torch.Tensor:
    logarithms = scores.log_softmax(1)
    return -(logarithms.exp() * logarithms).sum(1)


def draw_samples(count: int) -> torch.Tensor:
    return torch.randn(count, 32) * (1 + torch.rand(count, 1))


torch.manual_seed(209)
rules = torch.randn(32, 6)
classifier = Classifier(32, 192, 6)
optimizer = torch.optim.Adam(classifier.parameters(), lr=2e-3)
candidates = Candidates()
seen = 0
for _step in range(500):
    samples = draw_samples(64)
    loss = nn.functional.cross_entropy(classifier(samples), (samples @ rules).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        rows = classifier.embed(draw_samples(128))
        numbers = torch.arange(seen, seen + len(rows))
        candidates.consider(numbers, rows, entropy(classifier.head(rows)))
        seen += len(rows)
print(f"{loss.item():.6f} {len(candidates.embeddings)}")
