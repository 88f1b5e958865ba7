"""K-fold with accelerate.free_memory between folds."""

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def fold_indices(n, k, seed):
    parts = np.array_split(np.random.default_rng(seed).permutation(n), k)
    for i in range(k):
        yield np.concatenate(parts[:i] + parts[i + 1 :]), parts[i]


def run_fold(accelerator, x, y, train, valid):
    model = nn.Sequential(
        nn.Linear(80, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=672, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    history = []
    for _ in range(4):
        for bx, by in loader:
            loss = nn.functional.mse_loss(model(bx).squeeze(1), by)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            history.append(loss.item())
    with torch.no_grad():
        score = nn.functional.mse_loss(model(x[valid]).squeeze(1), y[valid]).item()
    model, optimizer, loader = accelerator.free_memory(model, optimizer, loader)
    return score, history


def main(repeats=4, k=5):
    torch.manual_seed(0)
    x = torch.randn(8400, 80)
    y = x[:, 0].sin() + x[:, 1] * x[:, 2]
    accelerator = Accelerator(cpu=True)
    scores, curves = [], []
    for repeat in range(repeats):
        for train, valid in fold_indices(len(x), k, repeat):
            score, curve = run_fold(accelerator, x, y, train, valid)
            scores.append(score)
            curves.append(curve)
            print(f"repeat {repeat}: {score:.4f}")
    print("mean", np.mean(scores), "steps", sum(map(len, curves)))


if __name__ == "__main__":
    main()
