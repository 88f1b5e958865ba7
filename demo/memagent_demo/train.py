"""Train a small GPT on the sources of the Python standard library.

An ordinary script, except for the call of `attach` and a function that saves a checkpoint when
memagent expects the run to crash.

`--leak outputs` collects every batch's logits in a list, "to compute the accuracy at the end".
`--leak loss` sums up a validation loss without `torch.no_grad()` or `.item()`. The sum retains each
step's graph with its activations. Both leaks are common in real code.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import memagent

VOCABULARY = 256  # bytes


class TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        output: torch.Tensor = x + self.mlp(self.norm2(x))
        return output


class GPT(nn.Module):
    def __init__(
        self, width: int = 96, layers: int = 2, heads: int = 4, context: int = 128
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        logits: torch.Tensor = self.head(
            self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))
        )
        return logits


def read_corpus(limit_bytes: int = 4_000_000) -> torch.Tensor:
    """Return the sources of the standard library as a tensor of bytes, in order of file names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit_bytes:
            break
    return torch.frombuffer(text, dtype=torch.uint8).long()


def batches(corpus: torch.Tensor, batch: int, context: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(corpus) - context - 1, (batch,), generator=generator)
    return torch.stack([corpus[start : start + context + 1] for start in starts.tolist()])


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def usable_cores() -> int:
    """Return the cores that `taskset` or a container allows: more threads would only wait."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--leak", choices=("none", "outputs", "loss"), default="none")
    parser.add_argument(
        "--gpu-limit-bytes", type=int, help="use at most this much of the GPU, if there is one"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="file for a checkpoint when memory is about to run out"
    )
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(max(1, usable_cores() - 1))  # leave a core to the server
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and options.gpu_limit_bytes:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.gpu_limit_bytes / total))
    corpus = read_corpus()
    model = GPT(context=options.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def save(_risk: memagent.Risk) -> None:
        if options.checkpoint:
            torch.save(
                {
                    "step": run.step,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
                options.checkpoint,
            )
            print(f"checkpoint saved at step {run.step}", flush=True)

    run = memagent.attach(model, optimizer, total_steps=options.steps, config=options, on_risk=save)

    outputs = []
    validation_loss = torch.zeros((), device=device)
    for step in range(options.steps):
        tokens = batches(corpus, options.batch, options.context, seed=step).to(device)
        logits = model(tokens[:, :-1])
        loss = loss_of(logits, tokens)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        run.log({"loss": loss})
        if options.leak == "outputs":
            outputs.append(logits)
        elif options.leak == "loss":
            sample = tokens[:2]
            validation_loss = validation_loss + loss_of(model(sample[:, :-1]), sample)
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.3f}", flush=True)
    run.finish()


if __name__ == "__main__":
    main()
