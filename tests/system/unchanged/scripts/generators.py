"""Training inside generators and coroutines, with throw, close and context variables."""
import asyncio
import contextvars

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


epoch = contextvars.ContextVar("epoch", default=0)


def training():
    try:
        while True:
            try:
                yield step()
            except ValueError as error:
                print("thrown in", error)
    finally:
        print("closed", step())


run = training()
print(next(run), next(run), run.throw(ValueError("x")), next(run))
run.close()


async def trainer(name, count):
    epoch.set(count)
    for _ in range(count):
        print(name, step(), epoch.get())
        await asyncio.sleep(0)


async def main():
    await asyncio.gather(trainer("a", 2), trainer("b", 3))
    print(epoch.get(), await asyncio.to_thread(step), len(asyncio.all_tasks()))


asyncio.run(main())
