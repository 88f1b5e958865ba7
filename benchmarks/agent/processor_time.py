"""What the agent takes of the processor, in percent of a training on one busy core.

1. Processor time of a thread doesn't count the time that it waits for a core. So the ratios hold on
   a shared machine, where seconds on the clock say little.
2. Blocks with empty hooks, with the raw reads and with the agent alternate in random order. The
   timers take processor time themselves, which the empty hooks tell. A block's first steps
   don't count: the agent reads them in full until it knows that they repeat.
3. The distribution of the hooks is that of 20,000 steps beside as many with the raw reads, whose
   timers are the same.
4. The agent's threads wake up by the clock. On a machine too busy for a hundred steps a second,
   fewer steps share their work, and their time by the second is the better figure.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass, field

from benchmarks.agent import conditions
from benchmarks.agent.conditions import HookTimer, agent_cpu_s
from benchmarks.agent.steps import Condition
from benchmarks.agent.workload import Workload
from benchmarks.figures import Figure, from_samples, from_times, quantile
from memagent.lifecycle.registry import newest_run

_SETTLING_STEPS = 100


@dataclass
class HookCosts:
    """Processor seconds, per step in `hooks`, per block in the other lists."""

    hooks: list[float] = field(default_factory=list)
    is_short: list[bool] = field(default_factory=list)
    """For each of `hooks`, whether the agent knew that the step repeats those before it."""
    shares: list[float] = field(default_factory=list)
    """Of the hooks in the training thread's time."""
    thread_shares: list[float] = field(default_factory=list)
    """Of the agent's threads, by the training thread's time."""
    thread_rates: list[float] = field(default_factory=list)
    """The same by seconds on the clock."""


def measure(workload: Workload, *, rounds: int, steps: int) -> list[Figure]:
    empty, reads, agent = HookCosts(), HookCosts(), HookCosts()
    plan = [
        (conditions.empty_hooks, empty),
        (conditions.raw_reads, reads),
        (conditions.agent, agent),
    ]
    order = random.Random(0)
    workload.times(_SETTLING_STEPS)
    for _ in range(rounds):
        order.shuffle(plan)
        for condition, costs in plan:
            _one_block(workload, condition, steps, costs)
    return [*_shares(empty, agent, reads), *_distribution(empty, agent, reads)]


def _distribution(empty: HookCosts, agent: HookCosts, reads: HookCosts) -> list[Figure]:
    pairs = list(zip(agent.hooks, agent.is_short, strict=True))
    short = [time_s for time_s, is_short in pairs if is_short]
    full = [time_s for time_s, is_short in pairs if not is_short]
    middle, high = (
        1e6 * (quantile(agent.hooks, share) - quantile(reads.hooks, share)) for share in (0.5, 0.99)
    )
    mean = 1e6 * (statistics.fmean(agent.hooks) - statistics.fmean(empty.hooks))
    return [
        from_times("raw reads, timers included", reads.hooks),
        _times("hooks in repeated steps, the same", short),
        _times("hooks in steps read in full", full),
        Figure("mean of the hooks, without timers", "us", mean),
        Figure("hooks beyond the reads", "us", middle, p99=high, p99_goal=30.0),
    ]


def _times(name: str, times: list[float]) -> Figure:
    if not times:
        return Figure(name, "us", note="no such step")
    return from_times(name, times, note=f"{len(times):,} steps")


def _one_block(workload: Workload, condition: Condition, steps: int, costs: HookCosts) -> None:
    timer = HookTimer(workload, clock=time.thread_time)
    with condition(workload):
        timer.start()
        workload.times(_SETTLING_STEPS)
        timer.take()
        threads, began, began_at = agent_cpu_s() or 0.0, time.thread_time(), time.perf_counter()
        hooks = []
        run = newest_run()
        for _ in range(steps):
            costs.is_short.append(run is not None and run._pipeline.sampler.is_repetition)
            workload.step()
            hooks.append(timer.take())
        spent, seconds = time.thread_time() - began, time.perf_counter() - began_at
        threads = (agent_cpu_s() or 0.0) - threads
    costs.hooks += hooks
    costs.shares.append(sum(hooks) / spent)
    costs.thread_shares.append(threads / spent)
    costs.thread_rates.append(threads / seconds)


def _shares(empty: HookCosts, agent: HookCosts, reads: HookCosts) -> list[Figure]:
    timers = statistics.median(empty.shares)
    reads_alone = [share - timers for share in reads.shares]
    hooks_alone = [share - timers for share in agent.shares]
    both = [sum(shares) for shares in zip(hooks_alone, agent.thread_shares, strict=True)]
    return [
        from_samples("timers, less in all below", "%", empty.shares, scale=100),
        from_samples("raw reads", "%", reads_alone, scale=100),
        from_samples("hooks, reads included", "%", hooks_alone, scale=100),
        from_samples("the agent's threads", "%", agent.thread_shares, scale=100),
        from_samples("the agent's threads, a second", "ms", agent.thread_rates, scale=1e3),
        from_samples("hooks and threads", "%", both, scale=100, goal=0.5),
    ]
