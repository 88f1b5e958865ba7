"""DQN on a toy world; the replay buffer takes more than half of the run to fill."""

import argparse
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F


class QNet(nn.Module):
    def __init__(self, state=400, width=256, actions=4):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, actions),
        )

    def forward(self, x):
        return self.net(x)


class World:
    def __init__(self, seed=0, size=400):
        self.generator = torch.Generator().manual_seed(seed)
        self.size = size
        self.state = torch.randn(size, generator=self.generator)

    def step(self, action):
        reward = self.state[action * 10].item()
        self.state = 0.9 * self.state.roll(action + 1) + 0.4 * torch.randn(
            self.size, generator=self.generator
        )
        return self.state, reward


class Agent:
    def __init__(self, capacity=12_000):
        self.online, self.target = QNet(), QNet()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=5e-4)
        self.memory = deque(maxlen=capacity)

    def act(self, state, epsilon):
        if random.random() < epsilon:
            return random.randrange(4)
        with torch.no_grad():
            return int(self.online(state).argmax())

    def learn(self, size=96, gamma=0.95):
        batch = random.sample(self.memory, size)
        states, actions, rewards, following = zip(*batch)
        states, following = torch.stack(states), torch.stack(following)
        with torch.no_grad():
            goal = torch.tensor(rewards) + gamma * self.target(following).max(1).values
        value = self.online(states).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(value, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1400)
    args = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    world, agent = World(), Agent()
    state, loss = world.state, 0.0
    for step in range(args.steps):
        for _ in range(16):
            action = agent.act(state, epsilon=0.6)
            following, reward = world.step(action)
            agent.memory.append((state, action, reward, following))
            state = following
        if len(agent.memory) >= 96:
            loss = agent.learn()
        if step % 100 == 0:
            agent.target.load_state_dict(agent.online.state_dict())
            print(f"step {step} loss {loss:.4f} memory {len(agent.memory)}", flush=True)


if __name__ == "__main__":
    main()
