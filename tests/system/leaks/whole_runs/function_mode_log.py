# Thread: Stonesjtu/pytorch_memlab#17 "Memory leak when calling mem reporter" (a debugging aid that holds the
# tensors it reports). Pattern: a TorchFunctionMode records the convolutions and matmuls with their
# results, to print a table at the end.
# Expected: the append in __torch_function__, holder `records`.
import memagent
import torch
from torch import nn
from torch.overrides import TorchFunctionMode


class OpTracer(TorchFunctionMode):
    watched = (torch.nn.functional.linear, torch.conv2d)

    def __init__(self):
        super().__init__()
        self.records = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in self.watched:
            self.records.append({"op": func.__name__, "out": result.detach()})  # LEAK any records
        return result

    def table(self):
        rows = {}
        for record in self.records:
            rows[record["op"]] = rows.get(record["op"], 0) + record["out"].numel()
        return rows


def main():
    model = nn.Sequential(
        nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 96)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    memagent.attach(model, optimizer)
    tracer = OpTracer()
    with tracer:
        for step in range(700):
            x = torch.randn(64, 96)
            loss = (model(x) - x).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(tracer.table())


main()
