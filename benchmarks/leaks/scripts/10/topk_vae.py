"""VAE; the k best sets of weights and the worst reconstructions are kept.

lucidrains/ema-pytorch#35 and others suspect copies of weights: here a heap bounds them.
"""
import argparse
import copy
import heapq
import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F


class TopK:
    """Keep the k entries with the highest score."""

    def __init__(self, k):
        self.k, self.heap, self.tie = k, [], itertools.count()

    def offer(self, score, make):
        if len(self.heap) < self.k:
            heapq.heappush(self.heap, (score, next(self.tie), make()))
        elif score > self.heap[0][0]:
            heapq.heapreplace(self.heap, (score, next(self.tie), make()))


class VAE(nn.Module):
    def __init__(self, width=500, latent=24):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(784, width), nn.SiLU(), nn.Linear(width, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, 784))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def run(args):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    basis = torch.rand(12, 784)
    model = VAE()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    best, hardest = TopK(args.top), TopK(100)
    for step in range(args.steps):
        x = torch.softmax(torch.randn(128, 12), -1) @ basis
        recon, mu, logvar = model(x)
        per_image = F.mse_loss(recon, x, reduction="none").sum(-1)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(-1)
        loss = (per_image + 0.05 * kl).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        worst = per_image.argmax().item()
        hardest.offer(per_image[worst].item() - step, lambda: (x[worst].clone(), recon[worst].detach().clone()))
        if step % 10 == 9:
            best.offer(-loss.item(), lambda: copy.deepcopy(model.state_dict()))
        if step % 150 == 149:
            print(f"{step + 1}: elbo {-loss.item():.3f} kept {len(best.heap)} {len(hardest.heap)}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=900)
    p.add_argument("--top", type=int, default=8)
    p.add_argument("--seed", type=int, default=0)
    run(p.parse_args())
