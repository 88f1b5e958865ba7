"""Signals: an interrupt that is caught, a handler that stops, and an alarm."""
import signal

import torch

torch.manual_seed(60)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# memagent.attach(model, optimizer)


def step():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
for index in range(6):
    try:
        print(index, step())
        if index == 2:
            signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        print("interrupted")
    signal.raise_signal(signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.01)
while signal.SIGALRM not in seen:
    step()
print(seen.count(signal.SIGUSR1), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
