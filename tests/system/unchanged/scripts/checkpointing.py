"""Activation checkpointing in both forms, offloaded activations, and hooks on gradients."""
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(57)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.2), torch.nn.ReLU()) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# memagent.attach(model, optimizer)


def clamp(parameter):
    parameter.grad.clamp_(-0.01, 0.01)


for p in model.parameters():
    p.register_post_accumulate_grad_hook(clamp)
for step in range(9):
    x = torch.randn(4, 6, requires_grad=True)
    if step % 3 == 0:
        y = checkpoint(model, x, use_reentrant=True)
    elif step % 3 == 1:
        y = checkpoint(model, x, use_reentrant=False)
    else:
        y = checkpoint_sequential(model, 2, x, use_reentrant=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
        loss = y.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), x.grad.sum().item(), torch.get_rng_state().sum().item())
