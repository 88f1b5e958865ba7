# ranks: 2
"""fully_shard on gloo, and a full state dict on the first rank."""
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(38)
mesh = init_device_mesh("cpu", (2,))
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)
torch.manual_seed(100 + rank)
for step in range(6):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(step, loss.item(), type(model).__name__)
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if rank == 0:
    print({name: tensor.sum().item() for name, tensor in state.items()})
    torch.save(state, "full.pt")
dist.destroy_process_group()
