# environ: MEMAGENT_SERVER=http://127.0.0.1:9
"""The states of all random generators, with a server that cannot be reached."""
import hashlib
import pickle
import random
import time

import numpy as np
import torch

random.seed(58), np.random.seed(58), torch.manual_seed(58)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
# memagent.attach(model, optimizer)


def states():
    parts = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    return [hashlib.sha1(pickle.dumps(part)).hexdigest()[:8] for part in parts]


for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), states())
    time.sleep(0.25)  # the agent retries meanwhile
print(random.random(), np.random.rand(), torch.rand(()).item())
