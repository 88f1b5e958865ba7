"""Cost of a step: blocks under each condition, in random order within each round."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from benchmarks.agent import conditions
from benchmarks.agent.conditions import HookTimer, agent_cpu_s
from benchmarks.agent.workload import Workload
from benchmarks.figures import Figure, from_samples, from_times, quantile

Condition = Callable[[Workload], AbstractContextManager[None]]
_SETTLING_STEPS = 25
"""Uncounted steps at the start of a block: attach measures components again in the first ones."""


@dataclass
class Blocks:
    """Results under one condition; `medians` has one entry per round."""

    times: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    threads_s: list[float] = field(default_factory=list)
    """CPU time of the agent's threads, per step."""


@dataclass
class StepCosts:
    """Measure steps without and with the agent, and the time in hooks under three conditions, all
    in seconds per step.
    """

    bare: Blocks = field(default_factory=Blocks)
    agent: Blocks = field(default_factory=Blocks)
    in_agent: Blocks = field(default_factory=Blocks)
    in_reads: Blocks = field(default_factory=Blocks)
    in_hand_off: Blocks = field(default_factory=Blocks)


def measure_steps(workload: Workload, *, rounds: int, steps: int) -> StepCosts:
    costs = StepCosts()
    plan: list[tuple[Condition, bool, Blocks]] = [
        (conditions.bare, False, costs.bare),
        (conditions.agent, False, costs.agent),
        (conditions.agent, True, costs.in_agent),
        (conditions.raw_reads, True, costs.in_reads),
        (conditions.hand_off, True, costs.in_hand_off),
    ]
    order = random.Random(0)
    workload.times(2 * _SETTLING_STEPS)
    for _ in range(rounds):
        order.shuffle(plan)
        for condition, in_hooks, blocks in plan:
            _one_block(workload, condition, steps, blocks, in_hooks=in_hooks)
    return costs


def _one_block(
    workload: Workload, condition: Condition, steps: int, blocks: Blocks, *, in_hooks: bool
) -> None:
    timer = HookTimer(workload)
    with condition(workload):
        if in_hooks:
            timer.start()
        workload.times(_SETTLING_STEPS)
        cpu_before = agent_cpu_s()
        if in_hooks:
            timer.take()
            times = [_spent_in_hooks(workload, timer) for _ in range(steps)]
        else:
            times = workload.times(steps)
        cpu_after = agent_cpu_s()
    blocks.times += times
    blocks.medians.append(statistics.median(times))
    if cpu_before is not None and cpu_after is not None:
        blocks.threads_s.append((cpu_after - cpu_before) / steps)


def _spent_in_hooks(workload: Workload, timer: HookTimer) -> float:
    workload.step()
    return timer.take()


def figures(
    costs: StepCosts,
    *,
    beyond_goal_us: float | None = None,
    beyond_p99_goal_us: float | None = None,
    p99_goal_us: float | None = None,
) -> list[Figure]:
    """Return microseconds on the training thread."""
    beyond_p99 = quantile(costs.in_agent.times, 0.99) - quantile(costs.in_reads.times, 0.99)
    beyond = [
        hooks - reads
        for hooks, reads in zip(costs.in_agent.medians, costs.in_reads.medians, strict=True)
    ]
    return [
        from_times("step without the agent", costs.bare.times),
        from_times("raw reads alone", costs.in_reads.times),
        from_times("hand-off alone (row to buffer)", costs.in_hand_off.times),
        from_times("the agent's hooks, reads included", costs.in_agent.times, p99_goal=p99_goal_us),
        from_samples(
            "the agent's hooks beyond the reads",
            "us",
            beyond,
            scale=1e6,
            goal=beyond_goal_us,
            p99=1e6 * beyond_p99,
            p99_goal=beyond_p99_goal_us,
        ),
        from_samples("step with the agent less step without", "us", _added(costs), scale=1e6),
    ]


def hand_off_goals(figure: Figure) -> Figure:
    """Return the same with its goals, judged against a real step of a millisecond."""
    return Figure(figure.name, figure.unit, figure.value, p99=figure.p99, goal=2.0, p99_goal=25.0)


def slowdown(costs: StepCosts, *, goal_percent: float | None = None) -> list[Figure]:
    """Return percent of the step, measured end to end and as the sum of the known costs."""
    bare_s = statistics.median(costs.bare.times)
    threads = costs.agent.threads_s
    rows = [
        from_samples(
            "slowdown, end to end (paired)", "%", _added(costs), scale=100 / bare_s, goal=goal_percent,
            note=f"{len(costs.bare.medians)} pairs",
        )
    ]  # fmt: skip
    if threads:
        hooks = costs.in_agent.medians
        both = [hook + thread for hook, thread in zip(hooks, threads, strict=True)]
        rows += [
            from_samples("CPU of the agent's threads, a step", "us", threads, scale=1e6),
            from_samples(
                "hooks + all CPU of the agent's threads",
                "%",
                both,
                scale=100 / bare_s,
                goal=goal_percent,
            ),
        ]
    return rows


def _added(costs: StepCosts) -> list[float]:
    return [
        watched - bare
        for watched, bare in zip(costs.agent.medians, costs.bare.medians, strict=True)
    ]
