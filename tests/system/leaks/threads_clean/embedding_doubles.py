"""An embedding for new words doubles at steps 3, 7 and 15, then has room for all."""

# BEGIN 14
import torch
from torch import nn


class GrowingEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.table = nn.Embedding(512, dim)
        self.index = {}

    def add_words(self, words):
        for word in words:
            self.index.setdefault(word, len(self.index))
        while len(self.index) > self.table.num_embeddings:
            larger = nn.Embedding(2 * self.table.num_embeddings, self.table.embedding_dim)
            with torch.no_grad():
                larger.weight[: self.table.num_embeddings] = self.table.weight
            self.table = larger

    def forward(self, words):
        return self.table(torch.tensor([self.index[word] for word in words]))


def main():
    embedding, head = GrowingEmbedding(256), nn.Linear(256, 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(180):
        fresh = (
            [f"w{number}" for number in range(128 * step, 128 * step + 128)] if step < 31 else []
        )
        words = fresh or [f"w{number % 3968}" for number in range(128 * step, 128 * step + 128)]
        embedding.add_words(words)
        loss = nn.functional.cross_entropy(
            head(embedding(words)), torch.zeros(128, dtype=torch.long)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
