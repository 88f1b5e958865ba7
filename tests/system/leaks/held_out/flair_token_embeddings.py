"""Embeddings are stored on the tokens of the corpus and are never cleared after a batch.
https://github.com/flairNLP/flair/issues/1274"""

import random
import sys

import torch
from torch import nn

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 150
WORDS = [f"w{n}" for n in range(3000)]


class Token:
    def __init__(self, text, tag):
        self.text = text
        self.tag = tag
        self._embeddings = {}

    def set_embedding(self, name, vector):
        self._embeddings[name] = vector  # LEAK any _embeddings|tokens

    def get_embedding(self):
        return torch.cat(list(self._embeddings.values()))


class Sentence:
    def __init__(self, tokens):
        self.tokens = tokens


class Corpus:
    def __init__(self, size):
        self.train = [
            Sentence([Token(random.choice(WORDS), random.randrange(5)) for _ in range(6)])
            for _ in range(size)
        ]


class CharacterEmbeddings(nn.Module):
    name = "characters"

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(128, 32)
        self.rnn = nn.GRU(32, 256, batch_first=True)

    def embed(self, sentences):
        tokens = [token for sentence in sentences for token in sentence.tokens]
        codes = torch.zeros(len(tokens), 6, dtype=torch.long)
        for row, token in enumerate(tokens):
            for column, letter in enumerate(token.text[:6]):
                codes[row, column] = ord(letter)
        with torch.no_grad():
            _, last = self.rnn(self.table(codes))
        for token, vector in zip(tokens, last[0]):
            token.set_embedding(self.name, vector.clone())
        return tokens


class SequenceTagger(nn.Module):
    def __init__(self, embeddings):
        super().__init__()
        self.embeddings = embeddings
        self.linear = nn.Linear(256, 5)

    def forward_loss(self, sentences):
        tokens = self.embeddings.embed(sentences)
        features = torch.stack([token.get_embedding() for token in tokens])
        tags = torch.tensor([token.tag for token in tokens])
        return nn.functional.cross_entropy(self.linear(features), tags)


class ModelTrainer:
    def __init__(self, model, corpus):
        self.model = model
        self.corpus = corpus

    def train(self, steps, batch_size=8):
        optimizer = torch.optim.SGD(self.model.linear.parameters(), lr=0.1)
        order = random.sample(range(len(self.corpus.train)), len(self.corpus.train))
        for step in range(steps):
            picks = order[step * batch_size : (step + 1) * batch_size]
            loss = self.model.forward_loss([self.corpus.train[i] for i in picks])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


ModelTrainer(SequenceTagger(CharacterEmbeddings()), Corpus(8 * STEPS + 4000)).train(STEPS)
