"""parametrize, prune, weight_norm and spectral_norm come and go between steps."""
import warnings

import torch
from torch.nn.utils import parametrizations, parametrize, prune

warnings.simplefilter("ignore")
torch.manual_seed(55)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
# memagent.attach(model, optimizer)


class Symmetric(torch.nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).T


def train(what):
    for _ in range(2):
        loss = model(torch.randn(4, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(what, loss.item())


train("plain")
torch.nn.utils.weight_norm(model[0])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train("weight_norm")
torch.nn.utils.remove_weight_norm(model[0])
parametrize.register_parametrization(model[1], "weight", Symmetric())
parametrizations.spectral_norm(model[2])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
train("parametrized")
print(model, type(model[1]).__name__, torch.allclose(model[1].weight, model[1].weight.T))
parametrize.remove_parametrizations(model[1], "weight")
prune.l1_unstructured(model[0], "weight", 0.5)
train("pruned")
print([type(hook).__name__ for hook in model[0]._forward_pre_hooks.values()], int(model[0].weight_mask.sum()))
prune.remove(model[0], "weight")
prune.global_unstructured([(model[1], "weight")], prune.RandomUnstructured, amount=3)
print(prune.is_pruned(model), list(dict(model.named_buffers())))
torch.save(model.state_dict(), "model.pt")
