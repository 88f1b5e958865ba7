# process: own
"""Files of exported programs: the same members, each with the same bytes."""
import hashlib
import os
import warnings
import zipfile

import torch

warnings.simplefilter("ignore")
torch.manual_seed(45)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)
for step in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
torch.export.save(torch.export.export(model, (torch.ones(2, 4),)), "model.pt2")
torch.jit.save(torch.jit.script(model), "script.pt")
torch.jit.save(torch.jit.trace(model, torch.ones(2, 4)), "trace.pt")
for name in ("model.pt2", "script.pt", "trace.pt"):  # debug_pkl: each operation with its stack
    with zipfile.ZipFile(name) as archive:
        for member in archive.namelist():
            content = archive.read(member)
            if not member.endswith(("debug_pkl", "serialization_id")):
                print(name, member, b"memagent" in content, hashlib.sha1(content).hexdigest())
os.remove("trace.pt")
