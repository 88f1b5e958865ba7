"""Signals of the process: their actions, masks, handlers that come and go, and children."""

import faulthandler
import os
import signal
import tempfile

import torch

torch.manual_seed(60)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
signal.signal(signal.SIGHUP, lambda number, frame: print("hangup", frame.f_code.co_name))
# memagent.attach(model, optimizer)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def actions():
    ends = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
    return [getattr(signal.getsignal(end), "__name__", signal.getsignal(end)) for end in ends]


print(step(), actions(), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
os.kill(os.getpid(), signal.SIGHUP)
print(signal.signal(signal.SIGTERM, lambda number, frame: print("term", frame.f_code.co_name)))
signal.raise_signal(signal.SIGTERM)
print(signal.signal(signal.SIGTERM, signal.SIG_IGN) is not None, step())
os.kill(os.getpid(), signal.SIGTERM)
print(signal.signal(signal.SIGTERM, signal.SIG_DFL), actions())
with tempfile.TemporaryFile("w+") as stacks:
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
    os.kill(os.getpid(), signal.SIGUSR1)
    stacks.seek(0)
    print(stacks.read().count("signals.py") > 0 or "main", faulthandler.unregister(signal.SIGUSR1))
for end in (signal.SIGTERM, signal.SIGUSR2):
    child = os.fork()
    if not child:
        signal.pause()
    os.kill(child, end)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), step())
try:
    os.kill(2**22 + 1, 0)
except ProcessLookupError as error:
    print(error, error.__traceback__.tb_next)
