# process: own
"""Two spawned trainers, which import this script anew, then one that fails."""
import torch
import torch.multiprocessing as mp
from torch import nn


def train(rank, fails):
    torch.manual_seed(100 + rank)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # memagent.attach(model, optimizer)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save({"model": model.state_dict(), "losses": losses}, f"rank{rank}.pt")
    if fails:
        raise ValueError("the script fails")


if __name__ == "__main__":
    mp.spawn(train, args=(False,), nprocs=2)
    for rank in range(2):
        print(torch.load(f"rank{rank}.pt")["losses"])
    try:
        mp.spawn(train, args=(True,), nprocs=1)
    except mp.ProcessRaisedException as error:
        print(type(error).__name__, error.error_index, error.exit_code)
        print(str(error).splitlines()[-1])
