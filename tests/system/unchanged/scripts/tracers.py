"""sys.settrace, sys.setprofile, sys.monitoring and tracemalloc on the script's own code."""
import collections
import sys
import threading
import tracemalloc

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


lines, calls = collections.Counter(), collections.Counter()


def trace(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        lines[event, frame.f_code.co_name] += 1
    return trace


def profile(frame, event, argument):
    if frame.f_code.co_filename == __file__:
        calls[event, frame.f_code.co_name] += 1


step()
sys.settrace(trace)
for _ in range(4):
    step()
print(sys.gettrace() is trace)
sys.settrace(None)
sys.setprofile(profile)
for _ in range(4):
    step()
print(sys.getprofile() is profile)
sys.setprofile(None)
print(sorted(lines.items()), sorted(calls.items()))
if hasattr(sys, "monitoring"):
    tool, events = sys.monitoring, sys.monitoring.events
    tool.use_tool_id(2, "mine")
    starts = collections.Counter()
    tool.register_callback(2, events.PY_START, lambda code, _: starts.update([code.co_name] if code.co_filename == __file__ else []))
    tool.set_events(2, events.PY_START)
    for _ in range(4):
        step()
    tool.set_events(2, 0)
    print(starts)
tracemalloc.start()
for _ in range(40):
    step()
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
tracemalloc.stop()
print(step(), tracemalloc.is_tracing())
