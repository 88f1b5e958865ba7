# Episodes of variable length in a deque(maxlen=100); an episode each 4 steps, so it fills for 400 steps
# and then fluctuates with the episodes' lengths. Clean.
import random
from collections import deque

import memagent
import torch
from torch import nn


class RecurrentReplay:
    def __init__(self, episodes):
        self.episodes = deque(maxlen=episodes)

    def add(self, episode):
        self.episodes.append(episode)

    def sample(self, length):
        episode = random.choice(self.episodes)
        start = random.randint(0, len(episode) - length)
        return episode[start : start + length]


class DRQN(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(160, 64, batch_first=True)
        self.q = nn.Linear(64, 5)

    def forward(self, x):
        return self.q(self.rnn(x[None])[0])


def main():
    model = DRQN()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memagent.attach(model, optimizer)
    replay = RecurrentReplay(100)
    for step in range(850):
        if step % 4 == 0:
            replay.add(torch.randn(random.randint(60, 400), 160))
        loss = model(replay.sample(24)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


main()
