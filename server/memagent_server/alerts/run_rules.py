"""Rules about a whole run: one rank against the others, and ranks that stand still. Asked with or without new samples."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sqlalchemy import select
from sqlalchemy.orm import Session

from memagent_server.alerts.rule_config import Policy, RuleConfig
from memagent_server.alerts.rule_input import RuleInput
from memagent_server.alerts.state import AlertState
from memagent_server.alerts.stream_state import SWITCHED_OFF, Change, StreamEvaluation, look
from memagent_server.store.models import Alert, Rank, Run
from memagent_server.store.pending_samples import StreamHead

HEARD_S = 45.0
"""A process that was heard of within this is alive: agents send something at least every 15 s."""

Streams = Collection[tuple[StreamHead, StreamEvaluation | None]]
Look = tuple[RuleConfig, int, bool, RuleInput]
"""A rule, the stream that an alert is about, whether streams have alerts of their own, and what is known."""


@dataclass
class RunEvaluation:
    """Alert states of a run, by rule and stream."""

    states: dict[tuple[str, int], AlertState] = field(default_factory=dict)

    def knows(self, looks: Iterable[Look]) -> bool:
        """Whether the states of all these are known; else they are what the store has open."""
        return all(_key(*one[:3]) in self.states for one in looks)


def alive_ranks(session: Session, now: float) -> dict[str, set[int]]:
    """Of all running runs, the ranks whose processes were heard of lately."""
    query = (
        select(Rank.run_id, Rank.rank)
        .join(Run, Run.id == Rank.run_id)
        .where(Run.status == "running")
    )
    alive: dict[str, set[int]] = {}
    for run_id, rank in session.execute(
        query.where(Rank.is_current, Rank.status == "running", Rank.last_seen_at >= now - HEARD_S)
    ):
        alive.setdefault(run_id, set()).add(rank)
    return alive


def looks_at(
    streams: Streams, alive: Collection[int], policy: Policy, now: float
) -> Iterator[Look]:
    """Every rule about a whole run, with the facts that it is asked on."""
    firsts = _first_of_ranks(streams)
    lopsided = peaks_of(firsts)
    if len(lopsided.peak_by_rank) > 1:
        fullest = max(firsts, key=lambda pair: pair[0].peak_bytes or 0)[0]
        yield policy["rank_imbalance"], fullest.id, False, lopsided
    for stream, watch in firsts:
        if watch is not None and watch.pace.received_at is not None and stream.rank in alive:
            facts = RuleInput(
                step=stream.last_step or 0,
                silent_s=now - watch.pace.received_at,
                step_s=watch.pace.step_s,
            )
            yield policy["stalled"], stream.id, True, facts


def decide(
    watch: RunEvaluation, looks: Iterable[Look], open_alerts: Collection[Alert], now: float
) -> list[tuple[int, Change]]:
    """(stream, change) for every alert about the run that changed. `open_alerts`: what the store has open of it."""
    changes = []
    for wanted, stream_id, is_per_stream, facts in looks:
        key = _key(wanted, stream_id, is_per_stream)
        before = watch.states.get(key)
        if before is None:
            before = _stored(open_alerts, wanted.rule.name, stream_id if is_per_stream else None)
        after, finding = look(wanted, before, facts, now)
        watch.states[key] = after
        if (after.state, after.severity) != (before.state, before.severity) and (
            before.is_open or after.is_open
        ):
            reason = "" if wanted.is_on else SWITCHED_OFF
            changes.append(
                (stream_id, Change(wanted.rule.name, after, finding, facts.step, reason))
            )
    return changes


def peaks_of(firsts: Streams) -> RuleInput:
    """The ranks' peaks on their first devices, for ranks that have one to compare."""
    peaks = {
        stream.rank: stream.peak_bytes
        for stream, _ in firsts
        if stream.kind != "host" and stream.peak_bytes
    }
    limits = [stream.limit_bytes for stream, _ in firsts if stream.limit_bytes]
    step = min((stream.last_step or 0 for stream, _ in firsts), default=0)
    return RuleInput(step=step, peak_by_rank=peaks, limit_bytes=max(limits, default=None))


def _first_of_ranks(streams: Streams) -> list[tuple[StreamHead, StreamEvaluation | None]]:
    """Of each rank the device that is used most; the host's where there is no other."""
    found: dict[int, tuple[StreamHead, StreamEvaluation | None]] = {}
    for pair in streams:
        known = found.get(pair[0].rank)
        if known is None or _order(pair[0]) > _order(known[0]):
            found[pair[0].rank] = pair
    return list(found.values())


def _order(stream: StreamHead) -> tuple[bool, int]:
    return stream.kind != "host", stream.peak_bytes or 0


def _key(wanted: RuleConfig, stream_id: int, is_per_stream: bool) -> tuple[str, int]:
    return wanted.rule.name, stream_id if is_per_stream else 0


def _stored(open_alerts: Collection[Alert], rule: str, stream_id: int | None) -> AlertState:
    wanted = [
        one
        for one in open_alerts
        if one.rule == rule and (stream_id is None or one.stream_id == stream_id)
    ]
    alert = max(wanted, key=lambda one: one.id, default=None)
    if alert is None:
        return AlertState()
    return AlertState(
        "firing" if alert.state == "firing" else "pending",
        "critical"
        if alert.severity == "critical"
        else "warning"
        if alert.severity == "warning"
        else "note",
        0,
        alert.opened_at,
    )
