"""Classify reviews, whose words are cut into pieces; the pieces of recent words are remembered."""

import itertools
import random
from collections import OrderedDict

import torch
from torch import nn

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class PieceTokenizer:
    def __init__(self, merges: list[str], capacity: int) -> None:
        self.ranks = {merge: rank for rank, merge in enumerate(merges)}
        self.capacity = capacity
        self.numbers = {piece: number for number, piece in enumerate([*LETTERS, *merges])}
        self.remembered = OrderedDict()

    def cut(self, word: str) -> list[str]:
        pieces = list(word)
        while len(pieces) > 1:
            pairs = [first + second for first, second in itertools.pairwise(pieces)]
            best = min(range(len(pairs)), key=lambda at: self.ranks.get(pairs[at], len(self.ranks)))
            if pairs[best] not in self.ranks:
                break
            pieces[best : best + 2] = [pairs[best]]
        return pieces

    def encode(self, word: str) -> tuple[int, ...]:
        if word in self.remembered:
            self.remembered.move_to_end(word)
            return self.remembered[word]
        numbers = tuple(self.numbers[piece] for piece in self.cut(word))
        self.remembered[word] = numbers
        if len(self.remembered) > self.capacity:
            self.remembered.popitem(last=False)
        return numbers


def draw_review(draw: random.Random, words: int) -> list[str]:
    return ["".join(draw.choices(LETTERS, k=draw.randrange(4, 9))) for _ in range(words)]


torch.manual_seed(214)
draw = random.Random(214)
merges = sorted({"".join(draw.choices(LETTERS, k=2)) for _ in range(260)})
tokenizer = PieceTokenizer(merges, capacity=20_000)
embedding = nn.EmbeddingBag(len(tokenizer.numbers), 48, mode="mean")
head = nn.Linear(48, 2)
optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=5e-3)
for _step in range(500):
    numbers, starts, labels = [], [], []
    for _ in range(8):
        starts.append(len(numbers))
        review = draw_review(draw, words=20)
        labels.append(int(sum(word.count("e") for word in review) > 4))
        for word in review:
            numbers.extend(tokenizer.encode(word))
    scores = head(embedding(torch.tensor(numbers), torch.tensor(starts)))
    loss = nn.functional.cross_entropy(scores, torch.tensor(labels))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.6f} {len(tokenizer.remembered)}")
