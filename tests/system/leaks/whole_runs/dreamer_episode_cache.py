# Thread: jsikyoon/dreamer-torch#8 and danijar/dreamerv2#40 "replay data memory usage?".
# Pattern: episodes (dicts of numpy arrays) stay in an OrderedDict by file name. The limit is checked
# against the number of environment steps, but the steps are summed from a key that no episode has,
# so the oldest is never erased. One episode each 12 updates.
# Expected: `cache[filename] = ...` in add_episode, holder `cache`/`train_eps`/`eps`.
import collections
import datetime
import uuid

import memagent
import numpy as np
import torch
from torch import nn

LIMIT = 20_000


def simulate(length=48):
    return {
        "image": np.random.randint(0, 255, (length, 32, 32, 3), dtype=np.uint8),
        "action": np.random.randn(length, 6).astype(np.float32),
        "reward": np.random.randn(length).astype(np.float32),
        "feat": np.random.randn(length, 1024).astype(np.float32),
    }


def erase_over_limit(cache, limit):
    total = sum(episode.get("steps", 0) for episode in cache.values())
    while total > limit:
        _, episode = cache.popitem(last=False)
        total -= episode["steps"]


def add_episode(cache, episode, limit=LIMIT):
    timestamp = datetime.datetime.now().strftime("%Y%m%dT%H%M%S")
    filename = f"{timestamp}-{uuid.uuid4().hex}-{len(episode['reward'])}.npz"
    cache[filename] = episode  # LEAK any cache|train_eps|eps
    erase_over_limit(cache, limit)


def sample_episodes(cache, batch, length, rng):
    names = list(cache)
    while True:
        chunk = []
        for _ in range(batch):
            episode = cache[names[rng.integers(len(names))]]
            start = rng.integers(0, len(episode["reward"]) - length)
            chunk.append({k: v[start : start + length] for k, v in episode.items()})
        yield {k: torch.as_tensor(np.stack([c[k] for c in chunk])) for k in chunk[0]}
        names = list(cache)


class WorldModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 4, 2),
            nn.ELU(),
            nn.Conv2d(8, 16, 4, 2),
            nn.ELU(),
            nn.Flatten(),
            nn.LazyLinear(64),
        )
        self.cell = nn.GRUCell(64 + 6, 64)
        self.reward = nn.Linear(64, 1)

    def forward(self, data):
        b, t = data["reward"].shape
        image = data["image"].flatten(0, 1).permute(0, 3, 1, 2).float() / 255 - 0.5
        embed = self.encoder(image).unflatten(0, (b, t))
        h = embed.new_zeros(b, 64)
        loss = 0.0
        for i in range(t):
            h = self.cell(torch.cat([embed[:, i], data["action"][:, i]], -1), h)
            loss = loss + (self.reward(h).squeeze(-1) - data["reward"][:, i]).pow(2).mean()
        return loss / t


def main():
    rng = np.random.default_rng(0)
    train_eps = collections.OrderedDict()
    for _ in range(4):
        add_episode(train_eps, simulate())
    dataset = sample_episodes(train_eps, 2, 6, rng)
    model = WorldModel()
    model(next(dataset))
    optimizer = torch.optim.Adam(model.parameters(), 3e-4)
    memagent.attach(model, optimizer)
    for update in range(700):
        loss = model(next(dataset))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100)
        optimizer.step()
        if update % 4 == 0:
            add_episode(train_eps, simulate())


if __name__ == "__main__":
    main()
