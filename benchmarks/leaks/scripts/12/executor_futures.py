"""Train on samples that coroutines fetch, with one executor for all of them."""

import asyncio

import torch
from torch import nn


class Executor:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.futures = []

    def execute(self, function, *arguments):
        future = asyncio.ensure_future(function(*arguments), loop=self.loop)
        self.futures.append(future)
        return future

    def wait_until_finished(self) -> None:
        self.loop.run_until_complete(asyncio.gather(*self.futures))


async def fetch(generator: torch.Generator, size: int):
    await asyncio.sleep(0)
    return torch.randn(size, 64, generator=generator)


async def next_batch(executor: Executor, generator: torch.Generator):
    rows = await asyncio.gather(*(executor.execute(fetch, generator, 128) for _ in range(8)))
    return torch.cat(rows)


def main() -> None:
    torch.manual_seed(0)
    loop = asyncio.new_event_loop()
    executor = Executor(loop)
    generator = torch.Generator().manual_seed(2)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(400):
        batch = loop.run_until_complete(next_batch(executor, generator))
        loss = ((model(batch) - batch) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(float(loss.detach()))
    loop.close()


main()
