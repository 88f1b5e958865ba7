# ranks: 2
"""DistributedDataParallel on gloo with a sampler, no_sync and a barrier."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(37)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
model = DistributedDataParallel(net)
data = TensorDataset(torch.randn(32, 4))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# memagent.attach(model, optimizer)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for index, (x,) in enumerate(loader):
        if index % 2 == 0:
            with model.no_sync():
                loss = model(x).pow(2).mean()
                loss.backward()
            continue
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        gathered = [torch.zeros(()) for _ in range(2)]
        dist.all_gather(gathered, loss.detach())
        if rank == 0:
            print(epoch, index, [item.item() for item in gathered])
if rank == 0:
    torch.save(model.module.state_dict(), "ddp.pt")
    torch.save(model.module, "module.pt")
    print(os.environ["WORLD_SIZE"])
dist.barrier()
dist.destroy_process_group()
