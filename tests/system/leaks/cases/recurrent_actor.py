"""An actor's state is never detached, beside an update with more graphs than are looked at."""

import torch
from torch import nn

WINDOW, ACTS = 40, 2


class Actor:
    def __init__(self, cell):
        self.cell = cell
        self.state = torch.zeros(16, 8)

    def act(self, observation):
        state, probabilities = self.step(observation, self.state)
        self.state = state  # LEAK hidden_state Actor.state
        return torch.multinomial(probabilities, 1)

    def step(self, observation, state):
        state = self.cell(observation, state)
        return state, torch.softmax(state.detach(), -1)


def update(cell, optimizer, observations):
    state, outputs, losses = torch.zeros(16, 8), [], []
    for observation in observations:
        state = cell(observation, state)
        outputs.append(state)
        losses.append(state.square().mean())
    loss = sum(losses)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


cell = nn.RNNCell(4, 8)
actor = Actor(cell)
optimizer = torch.optim.SGD(cell.parameters(), lr=1e-4)
window = [torch.randn(16, 4) for _ in range(WINDOW)]
for step in range(60):
    for _ in range(ACTS):
        observation = torch.randn(16, 4)
        actor.act(observation)
        window = [*window[1:], observation]
    update(cell, optimizer, window)
