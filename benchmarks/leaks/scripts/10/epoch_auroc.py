"""Click prediction. Scores of a whole epoch are kept for AUROC and dropped at its end.

Lightning-AI/pytorch-lightning#5733: list states of metrics look like a leak inside an epoch.
"""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Clicks(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        r = np.random.default_rng(i)
        x = r.standard_normal(300).astype(np.float32)
        return x, np.float32(x[:5].sum() + r.standard_normal() > 0)


class EpochAUROC:
    def __init__(self):
        self.scores, self.labels, self.hidden = [], [], []

    def update(self, scores, labels, hidden):
        self.scores.append(scores.detach().cpu())
        self.labels.append(labels.cpu())
        self.hidden.append(hidden.detach().cpu())

    def compute(self):
        s, y = torch.cat(self.scores).numpy(), torch.cat(self.labels).numpy()
        rank = s.argsort().argsort() + 1
        pos, neg = y.sum(), (1 - y).sum()
        spread = torch.cat(self.hidden).std(0).mean().item()
        return (rank[y == 1].sum() - pos * (pos + 1) / 2) / (pos * neg), spread

    def reset(self):
        self.__init__()


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(300, 1200), nn.ReLU(), nn.Linear(1200, 1200), nn.ReLU())
        self.head = nn.Linear(1200, 1)

    def forward(self, x):
        h = self.body(x)
        return self.head(h).squeeze(-1), h


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Clicks(64 * 90), batch_size=64, num_workers=1, persistent_workers=True)
    model, metric = Tower(), EpochAUROC()
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for epoch in range(8):
        for x, y in loader:
            score, hidden = model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(score, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            metric.update(score, y, hidden)
        auroc, spread = metric.compute()
        metric.reset()
        print(f"epoch {epoch} auroc {auroc:.3f} spread {spread:.3f}")
