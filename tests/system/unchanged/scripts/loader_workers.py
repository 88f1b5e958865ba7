"""Workers of a loader: their seeds, their init function, and an error out of one."""
import random

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Data(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 99:
            raise KeyError("no row")
        info = get_worker_info()
        return torch.tensor([index, info.id, random.random(), torch.rand(()).item()])


def init(worker):
    random.seed(worker)


torch.manual_seed(62)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
# memagent.attach(model, optimizer)
loader = DataLoader(Data(), batch_size=3, num_workers=2, shuffle=True, worker_init_fn=init, persistent_workers=True)
for epoch in range(2):
    for batch in loader:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, loss.item(), batch[:, 2].tolist())
try:
    list(DataLoader(Data(), sampler=[99], num_workers=1))
except KeyError as error:
    print("raised", "no row" in str(error))
