# Thread: Stonesjtu/pytorch_memlab#17 and #18 "The tensor_name and tensor_device mapping dict maintains a
# reference to the key / value tensor".
# Pattern: a reporter scans the garbage collector's objects each 10 steps and keeps a name for each tensor
# in a dict keyed by the tensor, so the gradients and batches of that moment stay.
# Expected: the assignment into `tensor_name`, holder `tensor_name`.
import gc

import memagent
import torch
from torch import nn


class MemReporter:
    def __init__(self, model):
        self.tensor_name = {}
        self.device_mapping = {}
        for name, param in model.named_parameters():
            self.tensor_name[param] = name

    def collect_tensor(self):
        self.device_mapping.clear()
        objects = [obj for obj in gc.get_objects() if type(obj) in (torch.Tensor, nn.Parameter)]
        for tensor in objects:
            if tensor not in self.tensor_name:
                self.tensor_name[tensor] = f"Tensor{len(self.tensor_name)}"  # LEAK any tensor_name
            self.device_mapping.setdefault(str(tensor.device), []).append(self.tensor_name[tensor])
            if (
                isinstance(tensor, nn.Parameter)
                and tensor.grad is not None
                and tensor.grad not in self.tensor_name
            ):
                self.tensor_name[tensor.grad] = (
                    self.tensor_name[tensor] + ".grad"
                )  # LEAK any tensor_name

    def report(self):
        self.collect_tensor()
        return {device: len(names) for device, names in self.device_mapping.items()}


def train_step(model, optimizer, reporter, step):
    x = torch.randn(64, 200)
    loss = (model(x) - x.flip(1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        return reporter.report()
    return None


def main():
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 200))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    memagent.attach(model, optimizer)
    reporter = MemReporter(model)
    for step in range(700):
        train_step(model, optimizer, reporter, step)


main()
