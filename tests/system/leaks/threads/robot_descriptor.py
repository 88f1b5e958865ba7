"""Behaviour cloning on simulated arm trajectories with managed attributes.

Descriptor side tables for instance values: https://github.com/nengo/nengo/pull/1090
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class FloatArray:
    """Attribute that is checked and converted when set."""

    def __init__(self, ndim):
        self.ndim = ndim
        self.values = {}

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return self.values[instance.uid]

    def __set__(self, instance, value):
        value = np.asarray(value, dtype=np.float32)
        if value.ndim != self.ndim:
            raise ValueError(f"expected {self.ndim} dimensions, got {value.ndim}")
        self.values[instance.uid] = value  # LEAK any values


class Trajectories:
    angles = FloatArray(3)
    _uids = itertools.count()

    def __init__(self, angles):
        self.uid = next(self._uids)
        self.angles = angles

    def pairs(self):
        data = torch.from_numpy(self.angles)
        return data[:, :-1].flatten(0, 1), data[:, 1:].flatten(0, 1)


class Simulator:
    def __init__(self, arms=64, joints=12, horizon=64, seed=0):
        self.rng = np.random.default_rng(seed)
        self.shape = (arms, horizon, joints)

    def rollout(self):
        torque = 0.1 * self.rng.standard_normal(self.shape, dtype=np.float32)
        return Trajectories(np.cumsum(np.tanh(torque), axis=1))


def main():
    torch.manual_seed(19)
    torch.set_num_threads(1)
    simulator = Simulator()
    policy = nn.Sequential(
        nn.Linear(12, 96),
        nn.Tanh(),
        nn.Linear(96, 96),
        nn.Tanh(),
        nn.Linear(96, 96),
        nn.Tanh(),
        nn.Linear(96, 12),
    )
    optimizer = torch.optim.RAdam(policy.parameters(), lr=1e-3)
    for step in range(200):
        batch = simulator.rollout()
        state, following = batch.pairs()
        chosen = torch.randperm(len(state))[:1280]
        state, following = state[chosen], following[chosen]
        loss = F.mse_loss(state + policy(state), following)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step:4d} imitation loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
