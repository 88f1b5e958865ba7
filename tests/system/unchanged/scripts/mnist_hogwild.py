"""Processes train a model in shared memory, one after the other, so that the result is certain."""
import torch
import torch.multiprocessing as mp
from torch import nn


def train(rank, model, results):
    torch.manual_seed(100 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        results.put((rank, loss.item()))


if __name__ == "__main__":
    torch.manual_seed(13)
    mp.set_start_method("fork", force=True)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))
    model.share_memory()
    results = mp.SimpleQueue()
    for rank in range(2):
        process = mp.Process(target=train, args=(rank, model, results))
        process.start()
        process.join()
        print(process.exitcode, [results.get() for _ in range(5)])
    with torch.no_grad():
        print(model(torch.ones(1, 6)).tolist())
    torch.save(model, "model.pt")
