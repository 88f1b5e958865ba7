# process: own
# stderr: has times
"""faulthandler dumps the script's own frames, on request, by a signal, and at an abort."""
import faulthandler
import os
import re
import signal

import torch

torch.manual_seed(92)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
faulthandler.enable(all_threads=False)
# memagent.attach(model, optimizer)
print(faulthandler.is_enabled())


def frames(path):
    with open(path) as file:
        text = file.read()
    os.remove(path)
    return re.findall(r"faulthandler_aborts\.py\", line (\d+) in (\w+)", text)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(3, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    with open("request", "w") as file:
        faulthandler.dump_traceback(file, all_threads=False)
    return loss.item()


dump = open("signal", "w")
faulthandler.register(signal.SIGUSR1, dump, all_threads=False)
for _ in range(3):
    print(step())
    print(frames("request"))
os.kill(os.getpid(), signal.SIGUSR1)
faulthandler.unregister(signal.SIGUSR1)
dump.close()
print(frames("signal"), flush=True)
os.abort()
