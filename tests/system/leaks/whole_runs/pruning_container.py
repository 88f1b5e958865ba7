# Thread: Lightning-AI/pytorch-lightning#8542 "Pruning callback causes memory leak when used iteratively".
# Pattern: iterative pruning calls prune.custom_from_mask on the same weight again and again; the
# PruningContainer that torch makes keeps each method with its mask.
# Expected: the line that calls prune.custom_from_mask, holder: `_pruning_methods`,
# PruningContainer, `_forward_pre_hooks` or the mask.
import memagent
import torch
import torch.nn.utils.prune as prune
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(256, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(x)))


class IterativePruning:
    def __init__(self, layers, every, final_sparsity, total):
        self.layers, self.every, self.final, self.total = layers, every, final_sparsity, total

    def on_train_batch_end(self, step):
        if step % self.every:
            return
        sparsity = self.final * min(1.0, step / self.total)
        for layer in self.layers:
            weight = layer.weight.detach().abs()
            threshold = torch.quantile(weight.flatten()[:4096], sparsity)
            prune.custom_from_mask(
                layer, "weight", mask=(weight > threshold).float()
            )  # LEAK any _pruning_methods|PruningContainer|_forward_pre_hooks|mask|hook


def fit(steps=900):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    memagent.attach(model, optimizer)
    callbacks = [IterativePruning([model.fc1], every=10, final_sparsity=0.8, total=800)]
    for step in range(1, steps + 1):
        x = torch.randn(64, 256)
        y = (x[:, :10]).argmax(1)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for callback in callbacks:
            callback.on_train_batch_end(step)


fit()
