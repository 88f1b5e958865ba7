"""What is kept of one stream between two turns of the worker: its forecaster, its alert states, and how far it has read.

1. A watch begins where the last one stopped: with the states of the stream's mark, and a forecaster that has seen the past (`history`).
2. Each new sample makes a forecast, and rules that look at samples decide on those that page, and on all while their alert stands.
3. After all new samples, rules that look at turns decide once, on the newest readings.
4. Where samples come in much faster than they were taken, and long after, the stream is catching up: nothing begins to fire (state, 9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from memagent.forecast import Forecast, Forecaster, Hints, feed_columns, later, select_columns
from memagent.forecast.replay_columns import READINGS
from memagent.forecast.state import dump_state, load_state
from memagent.forecast.types import PAGING_LEVELS
from memagent_server.alerts.rule_config import Policy, RuleConfig
from memagent_server.alerts.rule_input import CALM, Finding, RuleInput
from memagent_server.alerts.state import AlertState, observe
from memagent_server.store.chunks import Stats
from memagent_server.store.evaluation_state import Mark
from memagent_server.store.history import StoredChunk, newest_from, read_summaries
from memagent_server.store.pending_samples import StreamHead
from memagent_server.store.streams import used_of

LATE_S = 60.0
"""Samples that arrive sooner than this are fresh, whatever their pace."""
FAST = 2.0
"""Seconds of samples that arrive in a second, from which a stream is catching up."""
SWITCHED_OFF = "the rule was switched off"
_READ = ("step", *READINGS)
_LOWEST = ("step", "time_s", "allocated_bytes", "host_rss_bytes", "inactive_split_bytes")


@dataclass(frozen=True)
class Change:
    """A rule's alert went to `state` because of `finding` at `step`."""

    rule: str
    state: AlertState
    finding: Finding
    step: int
    reason: str = ""


@dataclass
class Pace:
    """How the samples of a stream come in, chunk by chunk."""

    time_s: float | None = None
    received_at: float | None = None
    step: int | None = None
    step_s: float | None = None
    is_late: bool = False

    def take(self, chunk: StoredChunk) -> None:
        steps, times = chunk.columns["step"], chunk.columns.get("time_s")
        if not times or times[-1] is None:
            return
        step, time_s = int(steps[-1] or 0), float(times[-1])
        if self.time_s is not None and self.received_at is not None:
            taken, arrived = time_s - self.time_s, chunk.received_at - self.received_at
            self.is_late = chunk.received_at - time_s > LATE_S and taken > FAST * arrived
        before = (
            (self.step, self.time_s) if self.step is not None else (int(steps[0] or 0), times[0])
        )
        self._learn(before, step, time_s)
        self.step, self.time_s, self.received_at = step, time_s, chunk.received_at

    def _learn(self, before: tuple[int, float | None], step: int, time_s: float) -> None:
        """What a step takes, by an average that forgets."""
        if before[1] is None or step <= before[0] or time_s <= before[1]:
            return
        fresh = (time_s - before[1]) / (step - before[0])
        self.step_s = fresh if self.step_s is None else 0.8 * self.step_s + 0.2 * fresh


@dataclass
class StreamEvaluation:
    """`mark` is the sample up to which the store knows what was decided; `told` the forecast that was last written to it."""

    run_id: str
    forecaster: Forecaster
    is_secondary_host: bool = False
    """It is the host of a rank that trains on GPUs."""
    run_born_at: float = 0.0
    predicted_peak_bytes: int | None = None
    read_seq: int = -1
    chunks: int = 0
    mark: int = -1
    decided: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What stood open at the mark."""
    states: dict[str, AlertState] = field(default_factory=dict)
    pace: Pace = field(default_factory=Pace)
    newest: Forecast | None = None
    told: Forecast | None = None
    remembered_seq: int = -1
    """The last sample that the kept recollection has seen."""

    def is_of(self, stream: StreamHead) -> bool:
        """SQLite gives the ids of deleted rows to new ones, and people the ids of deleted runs."""
        return (self.run_id, self.run_born_at) == (stream.run_id, stream.run_born_at)

    def state_of(self, rule: str) -> AlertState:
        return self.states.get(rule, AlertState())

    def stands(self, rules: Iterable[str]) -> bool:
        """Whether any of these has an alert that is open."""
        return any(rule in self.states and self.states[rule].is_open for rule in rules)

    def adopt(self, seq: int, states: Mapping[str, Any]) -> None:
        """Take over what was decided elsewhere, or before a restart."""
        self.states = {rule: AlertState(**facts) for rule, facts in states.items()}
        self.set_mark(seq)

    def set_mark(self, seq: int) -> None:
        """The store has what was decided up to the sample at place `seq`."""
        self.mark, self.decided = seq, standing(self.kept())

    def written(self) -> bool:
        """The store has what is decided so far."""
        self.told = self.newest
        self.set_mark(self.read_seq)
        return True

    def overtaken(self, seq: int, states: Mapping[str, Any]) -> bool:
        """Another worker has decided on what is read here."""
        self.told = self.newest
        self.adopt(seq, states)
        return True

    def kept(self) -> dict[str, Any]:
        """The states worth keeping, as JSON has them."""
        return {rule: asdict(state) for rule, state in self.states.items() if state != AlertState()}


def standing(kept: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """{rule: state and severity} of the alerts that are open in the states of a mark."""
    return {
        rule: (facts["state"], facts["severity"])
        for rule, facts in kept.items()
        if facts["state"] in ("pending", "firing")
    }


def remembered(watch: StreamEvaluation) -> bytes:
    """All that a watch knows but for its mark: for `resume`."""
    return msgspec.msgpack.encode((asdict(watch.pace), dump_state(watch.forecaster)))


def resume(
    stream: StreamHead,
    limit_bytes: int,
    mark: Mark,
    seq: int,
    state: bytes,
    *,
    is_secondary_host: bool,
) -> StreamEvaluation | None:
    """A watch that goes on where another worker's stopped; None where its past must be read again."""
    pace, packed = msgspec.msgpack.decode(state)
    forecaster = load_state(packed)
    if forecaster is None or forecaster.limit_bytes != limit_bytes:
        return None
    watch = StreamEvaluation(
        stream.run_id,
        forecaster,
        is_secondary_host,
        run_born_at=stream.run_born_at,
        pace=Pace(**pace),
    )
    watch.read_seq = watch.remembered_seq = seq
    watch.newest = forecaster.newest
    watch.adopt(mark.seq, mark.states)
    return watch


def begin_watch(
    session: Session,
    stream: StreamHead,
    limit_bytes: int,
    hints: Hints,
    mark: Mark | None,
    *,
    is_secondary_host: bool,
) -> StreamEvaluation:
    """A watch that has seen what is decided already."""
    forecaster = hints.forecaster(
        stream.device, limit_bytes, is_secondary_host=is_secondary_host, gc_probe=later
    )
    watch = StreamEvaluation(
        stream.run_id, forecaster, is_secondary_host, run_born_at=stream.run_born_at
    )
    if mark is not None:
        watch.adopt(mark.seq, mark.states)
    first = newest_from(stream)
    for stats in read_summaries(session, stream, first, _READ):
        for forecast in feed_columns(
            watch.forecaster, select_columns(_row(stats), is_secondary_host=is_secondary_host)
        ):
            watch.newest = forecast
    watch.read_seq = first - 1
    return watch


def read_new(
    stream: StreamHead,
    watch: StreamEvaluation,
    chunks: Iterable[StoredChunk],
    latest: Mapping[str, Any],
    hints: Hints,
    policy: Policy,
    now: float,
) -> list[Change]:
    """Feed the watch what is new, and return how its alerts changed, in order. `latest`: the newest reading of every column."""
    changes: list[Change] = []
    hints.apply_to(watch.forecaster, stream.device, is_secondary_host=watch.is_secondary_host)
    watch.predicted_peak_bytes = hints.predicted_peak_bytes.get(stream.device)
    per_sample = {name: wanted for name, wanted in policy.items() if wanted.rule.looks == "sample"}
    for chunk in chunks:
        changes += _feed(stream, watch, chunk, per_sample, now)
    watch.chunks = stream.chunks
    changes = _as_of_now(changes, watch, policy)
    if watch.newest is not None and watch.read_seq > watch.mark:
        at = watch.pace.time_s
        per_turn = {name: wanted for name, wanted in policy.items() if wanted.rule.looks == "turn"}
        changes += _decide(
            watch, per_turn, _facts(stream, watch, latest), now if at is None else at
        )
    return changes


def _feed(
    stream: StreamHead, watch: StreamEvaluation, chunk: StoredChunk, policy: Policy, now: float
) -> list[Change]:
    """One chunk, row by row. A forecast that pages nobody changes nothing where nothing stands: see `rules.Looks`."""
    watch.pace.take(chunk)
    watch.read_seq = chunk.seq
    changes: list[Change] = []
    times = chunk.columns.get("time_s")
    stands, decided = watch.stands(policy), watch.mark - chunk.first_seq
    for row, forecast in enumerate(
        feed_columns(
            watch.forecaster,
            select_columns(chunk.columns, is_secondary_host=watch.is_secondary_host),
        )
    ):
        watch.newest = forecast
        if row > decided and (stands or forecast.level in PAGING_LEVELS):
            at = times[row] if times else None
            facts = RuleInput(step=forecast.step, kind=stream.kind, forecast=forecast)
            changes += _decide(watch, policy, facts, now if at is None else float(at))
            stands = watch.stands(policy)
    return changes


def _as_of_now(changes: list[Change], watch: StreamEvaluation, policy: Policy) -> list[Change]:
    """What began to fire some samples ago is told with what is known now."""
    newest = watch.newest
    if not changes or newest is None or changes[-1].state.state != "firing":
        return changes
    last, wanted = changes[-1], policy[changes[-1].rule]
    finding = wanted.rule.decide(
        RuleInput(step=newest.step, forecast=newest), wanted.thresholds, True
    )
    return (
        [*changes[:-1], replace(last, finding=finding, step=newest.step)]
        if finding.level != "ok"
        else changes
    )


def _decide(watch: StreamEvaluation, policy: Policy, facts: RuleInput, at: float) -> list[Change]:
    """Ask the rules, and move their states."""
    changes = []
    for name, wanted in policy.items():
        before = watch.state_of(name)
        if not (wanted.is_on or before.is_open):
            continue
        after, finding = look(wanted, before, facts, at, may_fire=not watch.pace.is_late)
        watch.states[name] = after
        if (after.state, after.severity) != (before.state, before.severity) and (
            before.is_open or after.is_open
        ):
            changes.append(
                Change(name, after, finding, facts.step, "" if wanted.is_on else SWITCHED_OFF)
            )
    return changes


def look(
    wanted: RuleConfig, before: AlertState, facts: RuleInput, at: float, *, may_fire: bool = True
) -> tuple[AlertState, Finding]:
    """One rule's decision on facts, and the state that it leads to. One that was switched off lets go at once."""
    if not wanted.is_on:
        return (
            AlertState("averted", before.severity, 0, at)
            if before.state == "firing"
            else AlertState()
        ), CALM
    finding = wanted.rule.decide(facts, wanted.thresholds, before.state == "firing")
    severity = wanted.severity(finding.level) or "ok"
    return observe(before, severity, at, wanted.rule.patience, may_fire=may_fire), finding


def _facts(stream: StreamHead, watch: StreamEvaluation, latest: Mapping[str, Any]) -> RuleInput:
    used = used_of(latest)
    if stream.limit_source == "cgroup":
        used = _whole(latest.get("cgroup_used_bytes")) or used
    return RuleInput(
        step=stream.last_step or 0,
        kind=stream.kind,
        used_bytes=used,
        peak_bytes=_whole(latest.get("peak_allocated_bytes")),
        launch_peak_bytes=stream.peak_bytes,
        reserved_bytes=_whole(latest.get("reserved_bytes")),
        inactive_split_bytes=_whole(latest.get("inactive_split_bytes")),
        limit_bytes=stream.limit_bytes,
        limit_source=stream.limit_source,
        predicted_peak_bytes=watch.predicted_peak_bytes,
        forecast=watch.newest,
    )


def _row(stats: Stats) -> dict[str, list[Any]]:
    """One sample that stands for a chunk: floors at their lowest, peaks at their highest, all else as it was last.

    It stands at the chunk's first step, for that is where a floor that grows is lowest: so a trend goes on without a bend.
    It is no training step, so that the sizes of batches are learnt from single steps only.
    """
    row: dict[str, list[Any]] = {}
    for name, (least, most, last) in stats.items():
        row[name] = [least if name in _LOWEST else most if "peak" in name else last]
    return {**row, "phase": ["past"], "input_size": [None]}


def _whole(value: Any) -> int | None:
    """A positive whole number, else None: what users wrote into their config may be anything."""
    return (
        int(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 2**62
        else None
    )
