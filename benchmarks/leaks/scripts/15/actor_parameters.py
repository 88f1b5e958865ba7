"""Push parameters to an actor in another process, which has more to do than to read them."""

import multiprocessing
import time

import torch
from torch import nn


def act(parameters: multiprocessing.Queue) -> None:
    while (weights := parameters.get()) is not None:
        time.sleep(0.5 + 0 * len(weights))


if __name__ == "__main__":
    torch.manual_seed(23)
    context = multiprocessing.get_context("fork")
    parameters = context.Queue()
    actor = context.Process(target=act, args=(parameters,), daemon=True)
    actor.start()
    critic = nn.Sequential(nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 64), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(critic.parameters(), lr=3e-4)
    for step in range(600):
        states, returns = torch.randn(256, 60), torch.randn(256, 1)
        loss = nn.functional.mse_loss(critic(states), returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = {name: value.detach().numpy().copy() for name, value in critic.named_parameters()}
        parameters.put((step, weights))
    parameters.cancel_join_thread()
    actor.terminate()
    print(f"{loss.item():.6f}")
