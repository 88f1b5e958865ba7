"""Steps that repeat each other for a while, then an evaluation, a hook, a trace and a copy."""

import copy
import hashlib
import io
import time

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(32, 8)
# memagent.attach(model, optimizer)


def step(batch=inputs):
    optimizer.zero_grad()
    loss = model(batch).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def saved():
    file = io.BytesIO()
    torch.save(model, file)
    return hashlib.sha256(file.getvalue()).hexdigest()[:16]


def evaluate():
    model.eval()
    with torch.no_grad():
        value = model(inputs).sum().item()
    model.train()
    return value


def note(module, arguments, output):
    seen.append(len(seen))


seen = []
for number in range(400):
    loss = step()
    time.sleep(0.005)
    if number % 50 == 49:
        print(number, loss.hex(), saved(), evaluate().hex(), len(model._forward_hooks))
    if number == 250:
        handle = model.register_forward_hook(note)
    if number == 300:
        handle.remove()
        print(len(seen), step(inputs[:7]).hex())
    if number == 330:
        print(torch.jit.trace(model, inputs, check_trace=False).graph.findNode("aten::tanh").kind())
    if number == 360:
        twin = copy.deepcopy(model)
        print(torch.equal(twin(inputs), model(inputs)), repr(twin) == repr(model))
print(
    hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
)
