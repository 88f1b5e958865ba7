"""A codebook gets a row per step: a new parameter takes the place of the old one."""

import torch


class Codebook(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = torch.nn.Parameter(torch.randn(4, 512))

    def extend(self, optimizer):
        longer = torch.cat((self.codes.data, torch.randn(4, 512)))
        self.codes = torch.nn.Parameter(longer)  # LEAK any codes
        optimizer.param_groups[0]["params"] = [self.codes]

    def forward(self, x):
        return torch.cdist(x, self.codes).amin(1)


def main():
    parts = {"encoder": torch.nn.Linear(32, 512), "quantizer": Codebook()}
    model = torch.nn.ModuleDict(parts)
    del parts
    optimizer = torch.optim.SGD(model["quantizer"].parameters(), lr=0.01)
    for _ in range(70):
        model["quantizer"](model["encoder"](torch.randn(16, 32))).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        model["quantizer"].extend(optimizer)


main()
