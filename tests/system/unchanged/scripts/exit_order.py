# process: own
"""What runs at the end: threads, exit handlers, finalizers, destructors, in this order."""
import atexit
import pickle
import sys
import threading
import weakref

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


class Loud:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("deleted", self.name)


class Record:
    value = 5


atexit.register(print, "exit handler: first")
loud = Loud("global")
weakref.finalize(model, print, "finalizer")
main_ends = threading.Event()


def train_on():
    main_ends.wait(10)
    for _ in range(3):
        print("thread", step())


@atexit.register
def last_words():
    print(pickle.loads(pickle.dumps(Record())).value, sys.modules["__main__"].__name__, step(), loud.name)


threading.Thread(target=train_on).start()
atexit.register(print, "exit handler: last")
print(step())
print("main ends")
main_ends.set()
