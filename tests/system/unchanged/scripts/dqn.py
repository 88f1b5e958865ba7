"""Q learning with a replay memory, a target network, and exploration from Python's random state."""
import math
import random
from collections import deque, namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(17)
torch.manual_seed(17)


def network():
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


policy_net, target_net = network(), network()
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
# memagent.attach(policy_net, optimizer)
memory, state = deque([], maxlen=50), torch.randn(1, 4)
for step in range(40):
    if random.random() > 0.05 + 0.9 * math.exp(-step / 20):
        with torch.no_grad():
            action = policy_net(state).max(1).indices.view(1, 1)
    else:
        action = torch.tensor([[random.randrange(3)]])
    next_state = 0.8 * state + 0.1 * (action - 1)
    memory.append(Transition(state, action, next_state, -next_state.abs().sum().view(1)))
    state = next_state if step % 10 else torch.randn(1, 4)
    if len(memory) < 16:
        continue
    batch = Transition(*map(torch.cat, zip(*random.sample(memory, 16))))
    values = policy_net(batch.state).gather(1, batch.action)
    with torch.no_grad():
        expected = target_net(batch.next_state).max(1).values * 0.99 + batch.reward
    loss = nn.SmoothL1Loss()(values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    weights, target = policy_net.state_dict(), target_net.state_dict()
    target_net.load_state_dict({k: weights[k] * 0.05 + target[k] * 0.95 for k in weights})
    print(step, loss.item(), action.item())
