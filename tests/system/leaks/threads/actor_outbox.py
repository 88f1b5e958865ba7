"""The learner sends its parameters each step; the actor takes the first and works on. What it does
not take waits in the sender: https://github.com/huggingface/lerobot/issues/1523."""

import multiprocessing as mp

import torch
from torch import nn


def actor(parameters, stop):
    parameters.get()
    stop.wait()


class Learner:
    def __init__(self, queue):
        self.parameters_queue = queue
        self.policy = nn.Sequential(
            nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)
        )
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)

    def push_policy(self):
        state = {
            name: value.detach().numpy().copy() for name, value in self.policy.state_dict().items()
        }
        self.parameters_queue.put(state)  # LEAK any queue._buffer

    def update(self):
        observation = torch.randn(512, 96)
        loss = (self.policy(observation) - observation[:, :6].tanh()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def main():
    context = mp.get_context("fork")
    queue, stop = context.Queue(), context.Event()
    worker = context.Process(target=actor, args=(queue, stop), daemon=True)
    worker.start()
    learner = Learner(queue)
    for step in range(150):
        loss = learner.update()
        learner.push_policy()
        if step % 50 == 0:
            print(step, loss)
    stop.set()
    queue.cancel_join_thread()
    worker.join(5)


if __name__ == "__main__":
    main()
