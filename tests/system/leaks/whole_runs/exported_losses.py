"""As in: chrisguidry/docket#164; prometheus/client_python#937."""

# Trains a recommender; losses are exported for Prometheus.
import torch
from prometheus_client import CollectorRegistry, Gauge, Histogram

torch.set_num_threads(1)
torch.manual_seed(6)

registry = CollectorRegistry()
STEP = Gauge("train_step", "current step", registry=registry)
LOSS = Histogram(
    "sample_loss",
    "loss of a sample",
    ["user", "item"],
    registry=registry,  # LEAK any _metrics|LOSS
    buckets=(0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0),
)

USERS, ITEMS, DIM = 20_000, 5_000, 64
users = torch.nn.Embedding(USERS, DIM, sparse=True)
items = torch.nn.Embedding(ITEMS, DIM, sparse=True)
mlp = torch.nn.Sequential(
    torch.nn.Linear(3 * DIM, 640),
    torch.nn.ReLU(),
    torch.nn.Linear(640, 640),
    torch.nn.ReLU(),
    torch.nn.Linear(640, 1),
)
sparse = torch.optim.SparseAdam([users.weight, items.weight], lr=1e-2)
dense = torch.optim.Adam(mlp.parameters(), lr=1e-3)


def score(u, i):
    a, b = users(u), items(i)
    return mlp(torch.cat([a, b, a * b], 1)).squeeze(1)


def export(u, i, losses, every=24):
    for user, item, loss in zip(u[::every].tolist(), i[::every].tolist(), losses[::every].tolist()):
        LOSS.labels(user=user, item=item).observe(loss)  # LEAK any _metrics|LOSS


for step in range(1300):
    u, i = torch.randint(0, USERS, (1024,)), torch.randint(0, ITEMS, (1024,))
    y = ((u * 31 + i * 17) % 10 < 4).float()
    losses = torch.nn.functional.binary_cross_entropy_with_logits(score(u, i), y, reduction="none")
    sparse.zero_grad()
    dense.zero_grad()
    losses.mean().backward()
    sparse.step()
    dense.step()
    STEP.set(step)
    export(u, i, losses.detach())  # LEAK any _metrics|LOSS
    if step % 100 == 0:
        print(step, round(losses.mean().item(), 4))
