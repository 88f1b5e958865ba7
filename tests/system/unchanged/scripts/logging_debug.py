# environ: MEMAGENT_SERVER=http://127.0.0.1:9
"""A root logger at DEBUG on stdout, with a server that cannot be reached."""
import logging
import sys
import time

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


logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
for index in range(5):
    logging.info("step %s %s", index, step())
    time.sleep(0.3)
logging.captureWarnings(True)
print(logging.root.handlers, logging.root.level)
