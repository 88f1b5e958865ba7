# stderr: has times
"""torch.profiler and cProfile: the events and calls of the script, with their counts."""
import cProfile
import collections
import pstats

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


for _ in range(2):
    step()
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
    for _ in range(5):
        step()
        profiler.step()
print(sorted((event.key, event.count, event.cpu_memory_usage) for event in profiler.key_averages()))
with torch.autograd.profiler.profile() as events:
    step()
print(collections.Counter(event.name for event in events.function_events))
profile = cProfile.Profile()
profile.runcall(lambda: [step() for _ in range(5)])
print(sorted((name, row[0]) for (file, _, name), row in pstats.Stats(profile).stats.items() if file == __file__ or name.startswith("<method 'backward")))
