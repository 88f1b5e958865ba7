"""Cost of the agent on the training thread: `python -m benchmarks.agent [--quick] [--json FILE]`.

The same small CPU training runs with and without `memagent.attach`, in alternating blocks within one process, so that a machine whose
speed drifts does so for both. Reported: the median step with and without, their difference, the ratio, and the cost of the raw reads
alone (what any observer that reads memory at four moments of a step must pay). Without a server; the local file and the local
forecaster are on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

import memagent
from memagent.probe.host import HostProbe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the blocks")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures = measure(blocks=4 if arguments.quick else 40)
    for name, value in figures.items():
        print(f"{name:<32}{value:>12.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(blocks: int, steps: int = 200) -> dict[str, float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(64, 256)

    def block() -> list[float]:
        times = []
        for _ in range(steps):
            began = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
            times.append(time.perf_counter() - began)
        return times

    block()
    without: list[float] = []
    with_agent: list[float] = []
    differences: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        import os

        os.environ["MEMAGENT_DIR"] = folder
        for _ in range(blocks):
            bare = block()
            run = memagent.attach(model, optimizer)
            watched = block()
            run.finish()
            without += bare
            with_agent += watched
            differences.append(statistics.median(watched) - statistics.median(bare))
    added = statistics.median(differences)
    reads = raw_reads_s()
    return {
        "step_without_us": 1e6 * statistics.median(without),
        "step_with_us": 1e6 * statistics.median(with_agent),
        "added_us": 1e6 * added,
        "raw_reads_us": 1e6 * reads,
        "added_without_reads_us": 1e6 * (added - reads),
        "ratio_with_over_without": statistics.median(with_agent) / statistics.median(without),
        "p99_with_over_p99_without": quantile(with_agent) / quantile(without),
    }


def raw_reads_s(count: int = 20_000) -> float:
    """Seconds for the memory readings of one step alone: four at the phases' ends and one sample."""
    probe = HostProbe()
    began = time.perf_counter()
    for _ in range(count):
        probe.read()
        probe.read()
        probe.read()
        probe.sample()
        probe.peak(0)
    took = time.perf_counter() - began
    probe.close()
    return took / count


def quantile(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
