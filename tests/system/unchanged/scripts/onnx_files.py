# requires: onnxscript
"""torch.onnx writes the same file before, between and after steps."""
import hashlib
import warnings

import onnx
import torch

warnings.simplefilter("ignore")
torch.manual_seed(91)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
# memagent.attach(model, optimizer)
x = torch.randn(3, 4)


def export(name):
    program = torch.onnx.export(model.eval(), (x,), dynamo=True, verbose=False)
    model.train()
    program.save(name)
    graph = onnx.load(name).graph
    print(name, [node.op_type for node in graph.node], [one.name for one in graph.initializer])
    for one in graph.initializer:
        print(one.name, hashlib.sha256(one.raw_data).hexdigest())


export("before.onnx")
for step in range(3):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
    export(f"{step}.onnx")
