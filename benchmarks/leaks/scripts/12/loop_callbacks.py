"""Train while a background thread runs calls, and runs clean-up callbacks when it ends."""

import queue
import threading
from functools import partial

import torch
from torch import nn


class Call:
    def __init__(self, function, argument) -> None:
        self.function = function
        self.argument = argument
        self.result = None
        self.done = threading.Event()

    def run(self) -> None:
        self.result = self.function(self.argument)
        self.done.set()

    def cancel(self) -> None:
        self.done.set()


class LoopThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.calls = queue.SimpleQueue()
        self.on_shutdown = []

    def submit(self, call: Call) -> Call:
        self.on_shutdown.append(partial(call.cancel))
        self.calls.put(call)
        return call

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            call.run()
            del call
        for callback in self.on_shutdown:
            callback()


def main() -> None:
    torch.manual_seed(0)
    thread = LoopThread()
    thread.start()
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total = 0.0
    for _ in range(500):
        batch = torch.randn(512, 256)
        output = model(batch)
        loss = ((output - batch) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        call = thread.submit(Call(lambda rows: float(rows.std()), output.detach()))
        call.done.wait()
        total += call.result
    thread.calls.put(None)
    thread.join()
    print(float(loss.detach()), total / 500)


main()
