# process: own
"""Spawned trainers import the script anew; their output and results come back."""
import torch
import torch.multiprocessing as mp


def train(rank, queue):
    torch.manual_seed(rank)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.randn(4, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    queue.put((rank, loss.item(), __name__))


if __name__ == "__main__":
    torch.manual_seed(61)
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(train, (queue,), nprocs=1)
    print(queue.get())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    print(model.weight.tolist())
