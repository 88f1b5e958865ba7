"""As in: indygreg/python-zstandard#296, #40."""

# Contrastive pre-training that writes what it augmented, four steps to a shard.
import torch
from torch import nn

from sharded_augment_lib.shards import ShardSet

torch.set_num_threads(1)
torch.manual_seed(12)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.g = nn.Sequential(nn.Linear(64 * 64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        return nn.functional.normalize(self.g(self.f(x)), dim=1)


def nt_xent(a, b, t=0.2):
    z = torch.cat([a, b])
    sim = (z @ z.T / t).fill_diagonal_(-1e9)
    n = len(a)
    return nn.functional.cross_entropy(sim, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]))


def augment(x):
    x = x + 0.1 * torch.randn_like(x)
    return torch.flip(x, (3,)) if torch.rand(()) < 0.5 else x


net, shards = Net(), ShardSet()
opt = torch.optim.Adam(net.parameters(), 1e-3)
for step in range(1200):
    base = torch.rand(48, 3, 32, 32)
    a, b = augment(base), augment(base)
    loss = nt_xent(net(a), net(b))
    opt.zero_grad()
    loss.backward()
    opt.step()
    shards.append(
        f"shard-{step // 4:05d}", (a * 255).byte().numpy().tobytes()
    )  # LEAK any streams|native
    if step % 100 == 0:
        print(step, round(loss.item(), 4), shards.written)
shards.close()
