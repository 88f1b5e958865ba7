"""Policy-gradient toy whose episodes are scored by a thread pool while training continues.

As in: graphql-core-legacy#104; python/cpython#85754.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn as nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self, state=64, width=256, actions=6):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(state, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, actions),
        )

    def forward(self, state):
        return Categorical(logits=self.net(state))


def score(states, actions):
    """Novelty of each state: distance to the nearest other one."""
    distance = torch.cdist(states, states)
    distance.fill_diagonal_(float("inf"))
    nearest = distance.min(1).values
    return {"novelty": nearest, "distance": distance, "actions": actions}


class Scorer:
    def __init__(self, workers=1):
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="scorer")
        self.outstanding = set()

    def submit(self, states, actions):
        future = self.pool.submit(score, states, actions)
        self.outstanding.add(future)  # LEAK any outstanding

    def mean_novelty(self):
        done = [f.result()["novelty"].mean().item() for f in self.outstanding if f.done()]
        return sum(done) / max(len(done), 1)


def rollout(policy, generator, size=192):
    states = torch.randn(size, 64, generator=generator)
    distribution = policy(states)
    actions = distribution.sample()
    rewards = (states[:, :6].argmax(1) == actions).float()
    return states, actions, rewards, distribution.log_prob(actions)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(8)
    policy, scorer = Policy(), Scorer()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for step in range(args.steps):
        states, actions, rewards, log_prob = rollout(policy, generator)
        loss = -(log_prob * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scorer.submit(states, actions)
        if step % 200 == 0:
            print(
                f"step {step} reward {rewards.mean():.3f} novelty {scorer.mean_novelty():.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
