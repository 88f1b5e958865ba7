# Thread: ray-project/ray#22678 "[RLlib] Fix a memory leak in SimpleReplayBuffer".
# Pattern: the storage of the replay buffer is a bounded ring, but each batch is also put on the list
# `last_added_batches`, meant for the mix-in subclass only, and nobody takes it from there.
# Expected: the append in ReplayBuffer.add_batch, holder `last_added_batches`.
import random

import memagent
import torch
from torch import nn


class SampleBatch(dict):
    @property
    def count(self):
        return len(self["rewards"])


class ReplayBuffer:
    def __init__(self, capacity, learning_starts):
        self.capacity = capacity
        self.learning_starts = learning_starts
        self.storage = []
        self.next_index = 0
        self.num_added = 0
        self.last_added_batches = []

    def add_batch(self, batch):
        self.last_added_batches.append(batch)  # LEAK any last_added_batches
        if len(self.storage) < self.capacity:
            self.storage.append(batch)
        else:
            self.storage[self.next_index] = batch
        self.next_index = (self.next_index + 1) % self.capacity
        self.num_added += batch.count

    def replay(self):
        if self.num_added < self.learning_starts:
            return None
        return random.choice(self.storage)


class RolloutWorker:
    def __init__(self, policy, fragment=6):
        self.policy = policy
        self.fragment = fragment
        self.obs = torch.zeros(1, 128)

    def sample(self):
        rows = []
        with torch.no_grad():
            for _ in range(self.fragment):
                action = self.policy(self.obs).argmax(-1)
                next_obs = self.obs * 0.9 + torch.randn(1, 128) * 0.1
                rows.append((self.obs, action, next_obs))
                self.obs = next_obs
        obs, actions, next_obs = zip(*rows)
        return SampleBatch(
            obs=torch.cat(obs),
            actions=torch.cat(actions),
            new_obs=torch.cat(next_obs),
            rewards=torch.rand(self.fragment),
            logits=torch.rand(self.fragment, 2048),
        )


def main():
    q = nn.Sequential(
        nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
    )
    optimizer = torch.optim.Adam(q.parameters(), lr=1e-4)
    memagent.attach(q, optimizer)
    worker = RolloutWorker(q)
    buffer = ReplayBuffer(capacity=20, learning_starts=24)
    for iteration in range(700):
        buffer.add_batch(worker.sample())
        batch = buffer.replay()
        if batch is None:
            continue
        for _ in range(1):
            values = q(batch["obs"]).gather(1, batch["actions"][:, None]).squeeze(1)
            with torch.no_grad():
                target = batch["rewards"] + 0.99 * q(batch["new_obs"]).max(1).values
            loss = nn.functional.smooth_l1_loss(values, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
