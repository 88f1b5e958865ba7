"""Stochastic weight averaging: a deep copy inside AveragedModel, SWALR, and update_bn."""
import torch
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(30)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# memagent.attach(model, optimizer)
data = [torch.randn(8, 4) for _ in range(4)]
swa = ema = scheduler = None
for epoch in range(4):
    for x in data:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        if ema is not None:
            ema.update_parameters(model)
        print(epoch, loss.item())
    if epoch == 1:
        swa, ema = AveragedModel(model), AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        scheduler = SWALR(optimizer, swa_lr=0.05)
    if swa is not None:
        swa.update_parameters(model)
        scheduler.step()
update_bn(data, swa)
print(swa, swa(data[0]).sum().item(), ema(data[0]).sum().item())
torch.save(swa, "swa.pt")
