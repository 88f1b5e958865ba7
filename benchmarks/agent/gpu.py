"""The same on a GPU: a model of GPT-2 small's size, bf16 autocast, fused AdamW, phases enabled.

1. Steps are timed by the block, between two synchronisations: within a block the processor runs
   ahead of the device, as in training.
2. `torch.cuda.set_sync_debug_mode("error")` makes torch raise when code waits for the device. The
   bare loop must pass, and then the loop with the agent, with its errors raised instead of guarded
   and a device tensor given to `run.log` at each step.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import nn

import memagent
from benchmarks.agent import steps as step_costs
from benchmarks.agent.workload import Workload
from benchmarks.figures import Figure

_STEPS_WATCHED = 20


class Block(nn.Module):
    """One transformer layer of GPT-2's shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = hidden.shape
        mixed = self.queries_keys_values(self.before_attention(hidden)).view(
            batch, tokens, 3, self.heads, -1
        )
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        mixed_in: torch.Tensor = self.mlp(self.before_mlp(hidden))
        return hidden + mixed_in


class Gpt(nn.Module):
    """Token and position embeddings, layers, and a head that shares the token embedding: 124 M parameters by default."""

    def __init__(
        self,
        *,
        layers: int = 12,
        width: int = 768,
        heads: int = 12,
        words: int = 50257,
        tokens: int = 1024,
    ):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.layers = nn.Sequential(
            *(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width)
        )
        self.places: torch.Tensor
        self.register_buffer("places", torch.arange(tokens), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.words(words) + self.positions(self.places[: words.shape[1]]))
        return nn.functional.linear(hidden, self.words.weight)


def workload(
    *, batch: int = 8, tokens: int = 1024, device: str = "cuda", **size: int
) -> tuple[Workload, torch.Tensor]:
    """Return the training, and the device tensor that holds its newest loss."""
    torch.manual_seed(0)
    model = Gpt(tokens=tokens, **size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    words = torch.randint(0, model.words.num_embeddings, (batch, tokens + 1), device=device)
    newest = torch.zeros((), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            scores = model(words[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        torch.autograd.backward(loss)
        optimizer.step()
        newest.copy_(loss.detach())

    wait = torch.cuda.synchronize if device == "cuda" else None
    return Workload("GPT-2 small", model, optimizer, step, wait), newest


def measure(*, rounds: int, steps: int) -> list[Figure]:
    if not torch.cuda.is_available():
        return [Figure("GPT-2 small", "", note="not measured: no CUDA device here")]
    training, newest = workload()
    training.times(10)
    costs = step_costs.measure_steps(training, rounds=rounds, steps=steps)
    return [
        *step_costs.figures(costs),
        *step_costs.slowdown(costs, goal_percent=0.3),
        synchronisations(training, newest),
    ]


def synchronisations(training: Workload, newest: torch.Tensor) -> Figure:
    """Return 0 if the agent never waited for the device, else 1; the note holds torch's message."""
    name = "waits for the device"
    torch.cuda.synchronize()
    with _SyncIsAnError():
        alone = _first_error(training.step)
    if alone:
        return Figure(name, "", note=f"not judged: the loop waits by itself: {alone}")
    os.environ["MEMAGENT_RAISE"] = "1"
    run = memagent.attach(training.model, training.optimizer)

    def step() -> None:
        training.step()
        run.log({"loss": newest})

    try:
        with _SyncIsAnError():
            watched = _first_error(step)
    finally:
        del os.environ["MEMAGENT_RAISE"]
        run.finish()
    return Figure(
        name,
        "",
        float(watched is not None),
        goal=0.0,
        note=watched or f"none in {_STEPS_WATCHED} steps",
    )


class _SyncIsAnError:
    """Make torch raise if code on any thread waits for the device inside this context."""

    def __enter__(self) -> None:
        self._before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode(self._before)


def _first_error(step: Callable[[], None]) -> str | None:
    try:
        for _ in range(_STEPS_WATCHED):
            step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None
